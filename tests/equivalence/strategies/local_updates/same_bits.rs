//! Workers have the weights of one process that runs one after another, whatever the mesh inside of them is.

use brigade::core::{Fragments, Groups, NamedTensor, OuterDtype, Zero};

use super::one_process::{Kind, one_after_another, one_after_another_in_fragments};
use super::{MICRO_BATCHES, WORKERS, averaging, diloco, rows, run, streaming};
use crate::mesh::{on_mesh, same_bits};
use crate::resume::{Saved, snapshot};
use crate::row::{MIXED, Row};

/// Runs each row, and compares weights with the reference, and reports with each other.
fn equal(rows: &[Row], reference: Option<&[NamedTensor]>) {
    let first = run(&rows[0]).swap_remove(0);
    let reference = reference.unwrap_or(&first.1);
    for row in rows {
        for (rank, (reports, weights)) in run(row).into_iter().enumerate() {
            let what = format!("rank {rank} of {row:?}");
            same_bits(&weights, reference, &what);
            assert_eq!(reports.len(), first.0.len(), "{what}");
            for (a, b) in reports.iter().zip(&first.0) {
                assert_eq!((a.step, a.targets, a.skipped), (b.step, b.targets, b.skipped), "{what}");
                assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss on {what}");
                assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "norm on {what}");
                assert_eq!(a.metrics, b.metrics, "{what}");
            }
        }
    }
}

#[test]
fn averaging_equals_one_process_that_runs_one_worker_after_another() {
    for (inner_steps, optimizer) in [(1, "sgd"), (3, "adamw")] {
        let base =
            Row { strategy: averaging(inner_steps), steps: 6, optimizer, masked: true, ..Row::default() };
        let reference = one_after_another(&base, inner_steps, Kind::Averages);
        equal(&rows(&base), Some(&reference));
    }
}

#[test]
fn an_outer_optimizer_equals_one_process_that_runs_one_worker_after_another() {
    let base = Row { strategy: diloco(2, OuterDtype::F32), steps: 6, clipping: Some(0.3), ..Row::default() };
    let reference = one_after_another(&base, 2, Kind::Steps);
    equal(&rows(&base), Some(&reference));
    let tied = Row { tied: true, ..base };
    let reference = one_after_another(&tied, 2, Kind::Steps);
    equal(&rows(&tied), Some(&reference));
}

#[test]
fn outer_gradients_in_int8_equal_one_process_that_codes_them_itself() {
    let base = Row { strategy: diloco(2, OuterDtype::Int8), steps: 6, masked: true, ..Row::default() };
    let reference = one_after_another(&base, 2, Kind::Coded);
    equal(&rows(&base), Some(&reference));
    let tied = Row { tied: true, offload: true, ..base };
    let reference = one_after_another(&tied, 2, Kind::Coded);
    equal(&rows(&tied), Some(&reference));
}

/// The weights are those that the workers have in common.
#[test]
fn fragments_equal_one_process_that_runs_one_worker_after_another() {
    let fragments = |count, overlap, mixing| Fragments { count, overlap, mixing };
    for (inner_steps, fragments, dtype, tied) in [
        (3, fragments(3, 0, 0.5), OuterDtype::F32, false),
        (4, fragments(2, 1, 0.5), OuterDtype::F32, true),
        (4, fragments(1, 3, 0.0), OuterDtype::Int8, false),
        (6, fragments(2, 2, 0.25), OuterDtype::Int8, true),
    ] {
        let strategy = streaming(inner_steps, dtype, Some(fragments));
        let base = Row { strategy, steps: 2 * inner_steps, masked: true, tied, ..Row::default() };
        let is_coded = dtype == OuterDtype::Int8;
        let reference = one_after_another_in_fragments(&base, is_coded, fragments, inner_steps);
        let rows = rows(&base);
        let found = Saved::of(on_mesh(&rows[0].mesh(), |groups| {
            let mut engine = rows[0].engine(groups.clone()).unwrap();
            (0..base.steps).for_each(|step| drop(rows[0].step(&mut engine, step, &groups)));
            snapshot(&engine)
        }));
        assert!(found.parameters() == reference, "{base:?}");
        equal(&rows, None);
    }
}

/// One fragment whose outer step is not delayed is the whole model.
#[test]
fn one_fragment_without_overlap_is_the_whole_model() {
    let base = Row { strategy: diloco(2, OuterDtype::Bf16), steps: 6, masked: true, ..Row::default() };
    let whole = run(&rows(&base)[0]).swap_remove(0).1;
    let fragments = Fragments { count: 1, overlap: 0, mixing: 0.0 };
    let streamed = Row { strategy: streaming(2, OuterDtype::Bf16, Some(fragments)), ..base };
    equal(&rows(&streamed), Some(&whole));
}

#[test]
fn no_mesh_inside_of_workers_changes_a_bit_of_fragments() {
    let fragments = Some(Fragments { count: 2, overlap: 1, mixing: 0.5 });
    let strategy = streaming(4, OuterDtype::Bf16, fragments);
    let base = Row { strategy, steps: 8, dropout: 0.1, masked: true, ..Row::default() };
    equal(&rows(&base), None);
    let mixed = Row { precision: MIXED, offload: true, tied: true, ..base };
    equal(&rows(&mixed), None);
}

#[test]
fn no_mesh_inside_of_workers_changes_a_bit() {
    let base =
        Row { strategy: diloco(2, OuterDtype::Bf16), steps: 4, dropout: 0.1, masked: true, ..Row::default() };
    equal(&rows(&base), None);
    let mixed = Row { precision: MIXED, offload: true, tied: true, ..base };
    equal(&rows(&mixed), None);
    let replicas: Vec<Row> = [(1, 2, 2), (4, 1, 0)]
        .map(|(dp, replicate, stage)| {
            let zero = Zero { stage, ..Zero::default() };
            Row {
                workers: 2,
                dp,
                replicate,
                zero,
                micro_batches: MICRO_BATCHES / dp / replicate,
                ..mixed.clone()
            }
        })
        .into();
    equal(&[&rows(&mixed)[..1], &replicas].concat(), None);
}

/// Means over workers after each step of plain SGD are those of one batch, where all workers have as many targets.
#[test]
fn averaging_after_each_step_of_sgd_is_synchronous_training_up_to_rounding() {
    let base = Row { optimizer: "sgd", steps: 4, ..Row::default() };
    let plain = Row { micro_batches: WORKERS * MICRO_BATCHES, ..base.clone() }.run(Groups::single_rank());
    let (_, averaged) = run(&Row { strategy: averaging(1), ..rows(&base)[1].clone() }).swap_remove(0);
    for (plain, averaged) in plain.weights.iter().zip(&averaged) {
        let [plain, averaged] = [plain, averaged].map(|tensor| tensor.data.as_slice::<f32>().unwrap());
        assert!(plain.iter().zip(averaged).all(|(a, b)| (a - b).abs() < 1e-5), "up to rounding");
    }
}
