//! Checkpoints in servers of others, with a faulty proxy before them. `cargo xtask test-stores` runs these.

use std::num::NonZeroUsize;
use std::sync::Arc;

use brigade_checkpoint::{
    Checkpoint, StagingDir, Storage, keep_latest, link_frozen, list, open_storage, remove_stale,
};
use brigade_testing::{ABSENT, BUCKET, FORBIDDEN, Fault, Protocol, READ_ONLY, StoreServer};

use crate::frozen::{self, How};
use crate::sample::{Sample, bits};

const FAULTS: [Fault; 6] =
    [Fault::None, Fault::Status(503), Fault::Slow(1), Fault::Cut(100), Fault::LostRequest, Fault::LostAnswer];

fn server(protocol: Protocol) -> StoreServer {
    let server = StoreServer::start(protocol, &[]);
    // SAFETY: this test is the only one of its process, and no client is there yet.
    unsafe { server.enter() };
    server
}

fn steps(storage: &dyn Storage) -> Vec<u64> {
    list(storage).unwrap().iter().map(|found| found.step).collect()
}

/// Saves twice what training does not change: the store copies it, if it can, or else it is sent again.
fn copies_what_is_frozen(storage: &Arc<dyn Storage>, sample: &Sample, copies: bool) {
    let first = frozen::save(&**storage, sample, 25, &How::Written(None)).unwrap();
    frozen::save(&**storage, sample, 30, &How::Linked(25, &first)).unwrap();
    let staging = StagingDir::with_id(35, "copied").unwrap();
    let copied = link_frozen(&**storage, &staging, 30, frozen::file_of(&first, 1));
    assert_eq!(copied.is_ok(), copies, "{copied:?}");
    storage.remove(&storage.staging_folder(&staging)).unwrap();
    for step in [25, 30] {
        frozen::assert_whole(storage, step, sample, "a store");
        let folder =
            storage.published().unwrap().into_iter().find(|there| there.step == step).unwrap().folder;
        storage.remove(&folder).unwrap();
    }
}

/// Saves by some ranks, reads as others, and removes, while every fifth request meets a fault.
fn checkpoints(protocol: Protocol, lengths: &[usize]) {
    let server = server(protocol);
    for (index, fault) in FAULTS.into_iter().enumerate() {
        server.proxy().plan(move |request| if request.number % 5 == 1 { fault } else { Fault::None });
        let sample = Sample::new(lengths, index as u32);
        let storage: Arc<dyn Storage> = open_storage(&server.url(BUCKET, &format!("runs/{index}"))).unwrap();
        for (step, ranks) in [(5, 1), (10, 2), (15, 2), (10, 2)] {
            sample.save(&*storage, step, ranks).unwrap();
        }
        assert_eq!(steps(&*storage), [15, 10, 5], "{fault:?}");
        let checkpoint = Checkpoint::open(storage.clone(), 10).unwrap();
        assert_eq!(checkpoint.verify(), vec![], "{fault:?}");
        // As three ranks read what they own.
        for ((unit, slot), values) in &sample.values {
            for rank in 0..3 {
                let range = values.len() * rank / 3..values.len() * (rank + 1) / 3;
                let mut read = vec![0.0; range.len()];
                checkpoint.read(unit, slot, range.clone(), &mut read).unwrap();
                assert_eq!(bits(&read), bits(&values[range]), "{fault:?}");
            }
        }
        let keep = NonZeroUsize::new(1).unwrap();
        let removed =
            keep_latest(&*storage, &storage.published().unwrap(), keep, |_| false, Some(5)).unwrap();
        assert_eq!(removed, [10], "{fault:?}");
        copies_what_is_frozen(&storage, &sample, protocol == Protocol::S3);
        let dead = StagingDir::with_id(20, "dead").unwrap();
        sample.write(&*storage, &dead, 2).unwrap();
        assert_eq!(steps(&*storage), [15, 5], "{fault:?}");
        assert_eq!(remove_stale(&*storage).unwrap(), ["step-00000020.dead"], "{fault:?}");
        assert!(sample.is_in(&Checkpoint::open(storage.clone(), 5).unwrap()).unwrap(), "{fault:?}");
    }
    // Nothing is left of what was removed: of each run two checkpoints, of one and two ranks.
    server.proxy().plan(|_| Fault::None);
    let objects = server.objects(BUCKET);
    let names: Vec<_> = objects.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), FAULTS.len() * (1 + 2 + 2 * 2), "{names:?}");
    let shown = |text: &[u8]| {
        server.secrets().iter().any(|secret| text.windows(secret.len()).any(|part| part == secret.as_bytes()))
    };
    assert!(!objects.iter().any(|(_, content)| shown(content)));
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn checkpoints_in_a_real_s3_are_whole_whatever_becomes_of_requests() {
    // Of one rank a file of 10 MB, which is uploaded in parts.
    checkpoints(Protocol::S3, &[850_000, 7, 300]);
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn checkpoints_in_a_real_gcs_are_whole_whatever_becomes_of_requests() {
    checkpoints(Protocol::Gcs, &[100_000, 7, 300]);
}

#[test]
#[ignore = "needs the servers of `cargo xtask test-stores`"]
fn a_save_to_a_real_bucket_without_the_right_is_one_message() {
    let server = server(Protocol::S3);
    for (lengths, bucket, said) in [
        (&[10][..], FORBIDDEN, "do not allow this"),
        (&[10], READ_ONLY, "do not allow this"),
        (&[850_000], READ_ONLY, "do not allow this"),
        (&[10], ABSENT, "the bucket does not exist"),
        (&[850_000], ABSENT, "the bucket does not exist"),
    ] {
        let url = server.url(bucket, "run");
        let storage = open_storage(&url).unwrap();
        let error = Sample::new(lengths, 1).save(&*storage, 1, 1).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains(&url), "{error}");
        assert!(!error.contains(['\n', '<']), "{error}");
        assert!(server.secrets().iter().all(|secret| !error.contains(secret)), "{error}");
        if bucket != READ_ONLY {
            let error = list(&*storage).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(&url), "{error}");
        }
    }
}
