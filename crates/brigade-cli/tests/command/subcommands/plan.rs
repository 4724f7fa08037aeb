//! `brigade plan`

use crate::place::Place;

#[test]
fn a_schedule_is_printed_and_drawn() {
    let place = Place::new();
    let line = "plan schedule --pp 4 --micro-batches 8 --schedule 1f1b --svg out.svg";
    let text = place.succeed(&mut place.brigade(line)).out;
    // (p - 1) / (m + p - 1) = 3 / 11
    assert!(text.contains("27.3%"), "{text}");
    assert!(text.contains("F0") && text.contains("B7"), "{text}");
    let drawing = place.text("out.svg");
    assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"), "{drawing}");
    let text = place
        .succeed(&mut place.brigade(
            "plan schedule --pp 2 --micro-batches 4 --schedule interleaved-1f1b --chunks 2 --actions",
        ))
        .out;
    // (p - 1) / (v·m + p - 1) = 1 / 9
    assert!(text.contains("11.1%"), "{text}");
}

#[test]
fn a_schedule_that_cannot_be() {
    let place = Place::new();
    for (line, said) in [
        ("--pp 4 --micro-batches 6 --schedule interleaved-1f1b --chunks 2", "make it 4 or 8"),
        ("--pp 4 --micro-batches 8 --schedule gpipe --chunks 2", "--schedule interleaved-1f1b"),
        ("--pp 0 --micro-batches 8", "at least 1"),
        ("--pp 2 --micro-batches 2 --svg nowhere/out.svg", "nowhere/out.svg"),
    ] {
        let done = place.run(&mut place.brigade(&format!("plan schedule {line}")));
        assert_ne!(done.code, Some(0), "{line}");
        assert!(done.err.contains(said), "{line}: {}", done.err);
    }
}
