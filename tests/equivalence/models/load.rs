//! Weights from a file have the same bits on every mesh, and so has what is trained from them.

use brigade::core::{Groups, Model, NamedTensor, PP, Precision, Zero};
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
    let source = Row { tied: true, ..Row::default() }.run(Groups::single_rank());
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
            let (loss, weights) = trained_from(&path, &row.reference(), strict, Groups::single_rank());
            let initial = row.reference().run(Groups::single_rank()).reports[0].loss;
            assert_ne!(loss, initial.to_bits(), "it starts from the file");
            let found = on_threads(pp, dp, |groups| trained_from(&path, &row, strict, groups));
            assert!(found.iter().all(|(found, _)| *found == loss), "{row:?}");
            same_bits(&found[0].1, &weights, &format!("{row:?}"));
        }
    }
}

/// What this thread has read from files so far, in bytes, as the system counts.
#[cfg(target_os = "linux")]
fn bytes_read() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_rank_reads_what_its_blocks_have_and_reads_it_once() {
    const SLACK: u64 = 500;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let base = Row { layers: 14, ..Row::default() };
    save_safetensors(&path, &base.engine(Groups::single_rank()).unwrap().tensors(0).unwrap(), &mapping())
        .unwrap();
    for (pp, dp, stage) in [(1, 1, 0), (1, 2, 0), (1, 2, 3), (2, 1, 0), (2, 2, 3), (4, 1, 0)] {
        let row = Row { pp, dp, zero: Zero { stage, ..Zero::default() }, ..base.clone() };
        let read = on_threads(pp, dp, |groups| {
            let mut opened = 0;
            let engine = row.engine_with(groups.clone(), |model| {
                model.load_weights(&path, &mapping(), Strict::Yes).unwrap();
                opened = bytes_read();
            });
            let (read, engine) = (bytes_read() - opened, engine.unwrap());
            let blocks = engine.chain().parameters_by_block();
            let split = brigade::core::plan::split(&[], &engine.chain().costs(), pp).unwrap();
            let first: usize = split[..groups.mesh().coordinate(groups.world().rank(), PP)].iter().sum();
            let here =
                blocks[first..].iter().take(split[groups.mesh().coordinate(groups.world().rank(), PP)]);
            (read, 4 * here.map(|(_, parameters)| *parameters as u64).sum::<u64>())
        });
        // Under ZeRO-3 the ranks of a stage share what it has; else each reads all of it.
        let readers = if stage == 3 { dp } else { 1 };
        for stage_reads in read.chunks(dp) {
            let own = stage_reads[0].1;
            for ranks in stage_reads.chunks(readers) {
                let sum: u64 = ranks.iter().map(|(read, _)| *read).sum();
                assert!(
                    (own..own + readers as u64 * SLACK).contains(&sum),
                    "{sum} bytes for {own}: pp {pp} x dp {dp}, ZeRO-{stage}"
                );
                let most = 2 * own / (readers as u64 + 1) + SLACK;
                assert!(ranks.iter().all(|(read, _)| *read < most), "{ranks:?} of {own}");
            }
            assert!(own > 10 * SLACK);
        }
        let all = std::fs::metadata(&path).unwrap().len();
        let sum: u64 = read.iter().map(|(read, _)| *read).sum();
        let copies = (dp / readers) as u64;
        assert!(sum < copies * all + read.len() as u64 * SLACK, "the stages share the file");
    }
}

#[test]
fn ranks_that_load_different_files_do_not_train() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(format!("{name}.safetensors"));
    let source = Row::default().run(Groups::single_rank()).weights;
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
                assert!(error.contains("rank 1 would load different weights from rank 0"), "{error}");
                assert!(error.contains(here), "{error}");
            }
        }
    }
}

#[test]
fn parameters_are_collected_on_any_ranks() {
    for (pp, dp, stage) in [(1, 1, 0), (1, 2, 3), (2, 2, 1), (2, 2, 3), (3, 1, 0)] {
        let row = Row { pp, dp, tied: true, zero: Zero { stage, ..Zero::default() }, ..Row::default() };
        let world = pp * dp;
        // One rank, or two, for each; by name.
        let roots = |name: &str| [name.len() % world, (name.len() / 2) % world].into();
        let collected = on_threads(pp, dp, |groups| {
            let (engine, rank) = (row.engine(groups.clone()).unwrap(), groups.world().rank());
            let mut own = Vec::new();
            let keep = |tensor: NamedTensor| {
                own.push(tensor);
                Ok(())
            };
            engine.collect_on(roots, keep).unwrap();
            for (name, _) in engine.shapes() {
                let is_own = roots(&name).contains(&rank);
                assert!(!is_own || own.iter().any(|tensor| tensor.name == name), "{name} on rank {rank}");
                let holders = engine.holders(&name);
                assert!(holders.len() == dp && holders.iter().all(|rank| rank / dp == holders[0] / dp));
            }
            assert_eq!(engine.holders("nowhere"), [0usize; 0]);
            (engine.tensors(0).unwrap(), own)
        });
        let whole = &collected[0].0;
        for tensor in collected.iter().flat_map(|(_, own)| own) {
            let same = whole.iter().find(|other| other.name == tensor.name).unwrap();
            same_bits(std::slice::from_ref(tensor), std::slice::from_ref(same), &tensor.name);
        }
    }
}
