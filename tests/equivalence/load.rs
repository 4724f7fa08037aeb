//! Weights from a file have the same bits on every mesh, and so has what is trained from them.

use brigade::core::{Groups, Model, NamedTensor, Precision, Zero};
use brigade::models::gpt::mapping;
use brigade::models::{LoadWeights, Strict, save_safetensors};
use brigade::models::{Logits, Tokens};

use crate::mesh::{on_threads, same_bits};
use crate::row::{MIXED, Row};

/// Trains two steps from a file of weights; gives the loss of the first and the weights after the last.
fn trained_from(
    path: &std::path::Path,
    row: &Row,
    strict: Strict,
    groups: Groups,
) -> (u64, Vec<NamedTensor>) {
    let mut engine = row
        .engine_with(groups.clone(), |model| {
            model.load_weights(path, &mapping(), strict).unwrap();
        })
        .unwrap();
    let mut loss = 0;
    for step in 0..row.steps {
        let report = row.step(&mut engine, step, &groups).unwrap();
        loss = if step == 0 { report.loss.to_bits() } else { loss };
    }
    (loss, engine.tensors(0).unwrap())
}

#[test]
fn every_mesh_trains_from_a_file_as_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let source = Row { tied: true, ..Row::default() }.run(Groups::alone());
    save_safetensors(&path, &source.weights, &mapping()).unwrap();
    // Without the tie the file lacks the head, whose values are initial ones then.
    for (tied, strict) in [(true, Strict::Yes), (false, Strict::No)] {
        for (pp, dp, stage, precision) in [
            (1, 2, 0, Precision::default()),
            (1, 2, 3, Precision::default()),
            (2, 2, 3, Precision::default()),
            (3, 1, 0, Precision::default()),
            (2, 2, 1, MIXED),
        ] {
            let row =
                Row { pp, dp, tied, precision, zero: Zero { stage, ..Zero::default() }, ..Row::default() };
            let (loss, weights) = trained_from(&path, &row.reference(), strict, Groups::alone());
            let initial = row.reference().run(Groups::alone()).reports[0].loss;
            assert_ne!(loss, initial.to_bits(), "it starts from the file");
            let found = on_threads(pp, dp, |groups| trained_from(&path, &row, strict, groups));
            assert!(found.iter().all(|(found, _)| *found == loss), "{row:?}");
            same_bits(&found[0].1, &weights, &format!("{row:?}"));
        }
    }
}

#[test]
fn ranks_that_load_different_files_do_not_train() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(format!("{name}.safetensors"));
    let source = Row::default().run(Groups::alone()).weights;
    save_safetensors(&path("a"), &source, &mapping()).unwrap();
    std::fs::copy(path("a"), path("copy")).unwrap();
    // One value of one tensor is another: the last one of the file.
    let mut bytes = std::fs::read(path("a")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path("b"), bytes).unwrap();
    for (pp, dp, stage) in [(1, 2, 0), (1, 2, 3), (2, 1, 0)] {
        let row = Row { pp, dp, zero: Zero { stage, ..Zero::default() }, ..Row::default() };
        let started = |files: [Option<&str>; 2]| {
            on_threads(pp, dp, |groups| {
                let file = files[groups.world().rank()].map(path);
                let load = |model: &mut Model<Tokens, Logits, _>| {
                    if let Some(file) = file {
                        model.load_weights(file, &mapping(), Strict::Yes).unwrap();
                    }
                };
                row.engine_with(groups.clone(), load).err().map(|error| error.to_string())
            })
        };
        assert_eq!(started([Some("a"), Some("copy")]), [None, None]);
        for (files, here) in [
            ([Some("a"), Some("b")], ["a.safetensors, with digest ", "b.safetensors, with digest "]),
            ([None, Some("b")], ["this rank loads nothing", "b.safetensors, with digest "]),
        ] {
            for (error, here) in started(files).into_iter().zip(here) {
                let error = error.unwrap();
                assert!(error.contains("rank 1 would load other weights than rank 0"), "{error}");
                assert!(error.contains(here), "{error}");
            }
        }
    }
}
