//! Schedules as text and as pictures.

use brigade_plan::{Pipeline, PipelineScheduleKind, Placement};

fn pipeline(kind: PipelineScheduleKind, stages: usize, chunks: usize, micro_batches: usize) -> Pipeline {
    Pipeline::new(kind, stages, chunks, micro_batches).expect("it is allowed")
}

#[test]
fn the_table_of_gpipe() {
    let gpipe = pipeline(PipelineScheduleKind::GPipe, 3, 1, 4);
    insta::assert_snapshot!(gpipe.summary(2.0).unwrap(), @"gpipe: 3 stages of 1 chunk, 4 micro-batches, bubble 33.3% (by formula 33.3%)");
    insta::assert_snapshot!(gpipe.table(100).unwrap(), @r"
    one column an action: F forward, B backward, with micro-batch

    slot   0  1  2  3  4  5  6  7  8  9  10 11
    rank 0 F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
    rank 1 .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
    rank 2 .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .
    ");
    insta::assert_snapshot!(gpipe.peaks(), @"peak activations (micro-batches x chunks), from rank 0: 4 4 4");
}

#[test]
fn the_table_of_1f1b() {
    let plain = pipeline(PipelineScheduleKind::OneFOneB, 4, 1, 8);
    insta::assert_snapshot!(plain.summary(2.0).unwrap(), @"1f1b: 4 stages of 1 chunk, 8 micro-batches, bubble 27.3% (by formula 27.3%)");
    insta::assert_snapshot!(plain.table(100).unwrap(), @r"
    one column an action: F forward, B backward, with micro-batch

    slot   0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21
    rank 0 F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 F6 B3 F7 B4 .  B5 .  B6 .  B7
    rank 1 .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 .  B6 .  B7 .
    rank 2 .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 .  B7 .  .
    rank 3 .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 .  .  .
    ");
    insta::assert_snapshot!(plain.peaks(), @"peak activations (micro-batches x chunks), from rank 0: 4 3 2 1");
}

#[test]
fn the_table_of_interleaved_1f1b() {
    let interleaved = pipeline(PipelineScheduleKind::Interleaved, 2, 2, 4);
    insta::assert_snapshot!(interleaved.summary(2.0).unwrap(), @"interleaved-1f1b: 2 stages of 2 chunks, 4 micro-batches, bubble 11.1% (by formula 11.1%)");
    insta::assert_snapshot!(interleaved.table(70).unwrap(), @r"
    one column an action: F forward, B backward, with micro-batch.chunk

    slot   0    1    2    3    4    5    6    7    8    9    10   11
    rank 0 F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0
    rank 1 .    F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1

    slot   12   13   14   15   16   17
    rank 0 .    B2.1 .    B3.1 B2.0 B3.0
    rank 1 B2.1 F3.1 B3.1 B2.0 B3.0 .
    ");
    insta::assert_snapshot!(interleaved.peaks(), @"peak activations (micro-batches x chunks), from rank 0: 5 3");
}

#[test]
fn the_table_of_zb_h1() {
    let zb_h1 = pipeline(PipelineScheduleKind::ZbH1, 4, 1, 6);
    insta::assert_snapshot!(zb_h1.summary(2.0).unwrap(), @"zb-h1: 4 stages of 1 chunk, 6 micro-batches, bubble 14.3% (by formula 14.3%)");
    insta::assert_snapshot!(zb_h1.table(100).unwrap(), @r"
    one column an action: F forward, I and W the halves of a backward, with micro-batch

    slot   0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20
    rank 0 F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
    rank 1 .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
    rank 2 .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
    rank 3 .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
    ");
    insta::assert_snapshot!(zb_h1.peaks(), @r"
    peak activations (micro-batches x chunks), from rank 0: 4 4 4 4
    of which wait for their weights' gradients: 1 2 3 4
    ");
}

#[test]
fn the_table_of_zb_h2() {
    let zb_h2 = pipeline(PipelineScheduleKind::ZbH2, 4, 1, 8);
    insta::assert_snapshot!(zb_h2.summary(3.0).unwrap(), @"zb-h2: 4 stages of 1 chunk, 8 micro-batches, bubble 8.6% (by formula 11.1% at --backward-ratio 2)");
    insta::assert_snapshot!(zb_h2.table(100).unwrap(), @r"
    one column an action: F forward, I and W the halves of a backward, with micro-batch

    slot   0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26
    rank 0 F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 I2 W1 W2 I3 I4 W3 W4 I5 I6 W5 W6 I7 W7 .  .  .
    rank 1 .  F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 I4 W1 W2 I5 I6 W3 W4 I7 W5 W6 W7 .  .
    rank 2 .  .  F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 I6 W1 W2 I7 W3 W4 W5 W6 W7 .
    rank 3 .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7
    ");
    insta::assert_snapshot!(zb_h2.peaks(), @r"
    peak activations (micro-batches x chunks), from rank 0: 7 7 7 7
    of which wait for their weights' gradients: 2 4 6 7
    ");
}

#[test]
fn the_table_of_zbv() {
    let zbv = pipeline(PipelineScheduleKind::Zbv, 2, 2, 4);
    insta::assert_snapshot!(zbv.summary(2.0).unwrap(), @"zbv: 2 stages of 2 chunks, 4 micro-batches, bubble 4.0% (by formula 4.0%)");
    insta::assert_snapshot!(zbv.table(150).unwrap(), @r"
    one column an action: F forward, I and W the halves of a backward, with micro-batch.chunk

    slot   0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15   16   17   18   19   20   21   22   23   24
    rank 0 F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3.0 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 F3.1 I3.1 I2.0 W3.1 I3.0 W2.0 W3.0 .
    rank 1 .    F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 F3.0 I1.0 W1.0 F3.1 I2.1 I2.0 I3.1 I3.0 W2.1 W2.0 W3.1 W3.0
    ");
    insta::assert_snapshot!(zbv.peaks(), @r"
    peak activations (micro-batches x chunks), from rank 0: 4 4
    of which wait for their weights' gradients: 2 4
    ");
}

#[test]
fn the_table_of_an_evaluation() {
    let evaluation = Pipeline::forward_only(Placement::Loop, 3, 1, 1);
    insta::assert_snapshot!(evaluation.summary(2.0).unwrap(), @"forward only: 3 stages of 1 chunk, 1 micro-batch, bubble 66.7% (by formula 66.7%)");
    insta::assert_snapshot!(evaluation.table(100).unwrap(), @r"
    one column an action: F forward, B backward, with micro-batch

    slot   0  1  2
    rank 0 F0 .  .
    rank 1 .  F0 .
    rank 2 .  .  F0
    ");
    assert_eq!(Pipeline::forward_only(Placement::Loop, 3, 1, 0).table(100).unwrap().lines().count(), 1);
}

#[test]
fn a_long_table_is_shown_at_its_ends() {
    let long = pipeline(PipelineScheduleKind::OneFOneB, 2, 1, 40);
    insta::assert_snapshot!(long.table(60).unwrap(), @r"
    one column an action: F forward, B backward, with micro-batch

    slot   0   1   2   3   4   5   6   7   8   9   10  11  12
    rank 0 F0  F1  .   B0  F2  B1  F3  B2  F4  B3  F5  B4  F6
    rank 1 .   F0  B0  F1  B1  F2  B2  F3  B3  F4  B4  F5  B5

    slot   13  14  15  16  17  18  19  20  21  22  23  24  25
    rank 0 B5  F7  B6  F8  B7  F9  B8  F10 B9  F11 B10 F12 B11
    rank 1 F6  B6  F7  B7  F8  B8  F9  B9  F10 B10 F11 B11 F12

    slot   26  27  28  29  30  31  32  33  34  35  36  37  38
    rank 0 F13 B12 F14 B13 F15 B14 F16 B15 F17 B16 F18 B17 F19
    rank 1 B12 F13 B13 F14 B14 F15 B15 F16 B16 F17 B17 F18 B18

    (slots 39 to 64 are left out)

    slot   65  66  67  68  69  70  71  72  73  74  75  76  77
    rank 0 B31 F33 B32 F34 B33 F35 B34 F36 B35 F37 B36 F38 B37
    rank 1 F32 B32 F33 B33 F34 B34 F35 B35 F36 B36 F37 B37 F38

    slot   78  79  80  81
    rank 0 F39 B38 .   B39
    rank 1 B38 F39 B39 .
    ");
    for width in [80, 100, 200] {
        let table = pipeline(PipelineScheduleKind::Interleaved, 16, 4, 64).table(width).unwrap();
        let longest = table.lines().map(str::len).max().unwrap();
        assert!(longest <= width, "{longest} of {width}");
    }
    let narrowest = pipeline(PipelineScheduleKind::OneFOneB, 2, 1, 1).table(0).unwrap();
    assert!(narrowest.contains("slot   0\nrank 0 F0\n"), "{narrowest}");
}

#[test]
fn the_list_of_all_actions() {
    insta::assert_snapshot!(pipeline(PipelineScheduleKind::OneFOneB, 2, 1, 2).listing(), @r"
    rank 0
      receive gradient 0.0 from 1
      forward 0.0
      send activation 0.0 to 1
      receive gradient 1.0 from 1
      forward 1.0
      send activation 1.0 to 1
      backward 0.0
      backward 1.0
      reduce chunk 0
    rank 1
      receive activation 0.0 from 0
      receive activation 1.0 from 0
      forward 0.0
      backward 0.0
      send gradient 0.0 to 0
      forward 1.0
      backward 1.0
      send gradient 1.0 to 0
      reduce chunk 0
    ");
}

#[test]
fn the_timeline() {
    insta::assert_snapshot!(pipeline(PipelineScheduleKind::OneFOneB, 2, 1, 2).svg(2.0).unwrap());
}

#[test]
fn a_timeline_holds_every_action_once() {
    for (kind, stages, chunks, micro_batches) in [
        (PipelineScheduleKind::GPipe, 1, 1, 1),
        (PipelineScheduleKind::OneFOneB, 4, 1, 8),
        (PipelineScheduleKind::Interleaved, 4, 3, 8),
        (PipelineScheduleKind::Interleaved, 16, 4, 64),
    ] {
        let svg = pipeline(kind, stages, chunks, micro_batches).svg(1.5).unwrap();
        assert_eq!(svg.matches("<title>").count(), 2 * stages * chunks * micro_batches, "{kind}");
        assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{kind}");
        for rank in 0..stages {
            assert!(svg.contains(&format!(">rank {rank}</text>")), "{kind}, rank {rank}");
        }
    }
    for ratio in [0.001, 1000.0] {
        let svg = pipeline(PipelineScheduleKind::OneFOneB, 2, 1, 40).svg(ratio).unwrap();
        assert_eq!(svg.matches("<title>").count(), 160, "{ratio}");
    }
    assert!(Pipeline::forward_only(Placement::Loop, 2, 1, 0).svg(2.0).unwrap().ends_with("</svg>\n"));
}
