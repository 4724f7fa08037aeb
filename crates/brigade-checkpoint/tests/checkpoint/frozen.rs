//! What training does not change is written once, and each checkpoint is whole without the others.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_checkpoint::{
    Checkpoint, Error, FileMetadata, LocalStorage, MANIFEST, MANIFEST_HASH, Manifest, RankShard, Result,
    StagingDir, Storage, frozen_file, keep_latest, link_frozen, list, publish, remove_stale, verify,
    write_frozen, write_shard,
};

use crate::sample::Sample;
use crate::storages::{Behaviour, Custom, Fault, Faulty, kinds};

const RANKS: usize = 2;

/// Two units that are trained and one that is not.
fn sample(seed: u32) -> Sample {
    Sample::new(&[20, 9, 40], seed)
}

/// Another state of the same run: only what is trained has other values.
fn later(first: &Sample, seed: u32) -> Sample {
    let mut sample = sample(seed);
    for (name, values) in &mut sample.values {
        if is_frozen(&name.0) {
            *values = first.values[name].clone();
        }
    }
    sample
}

fn is_frozen(unit: &str) -> bool {
    unit == "block.2"
}

/// What each rank does with its frozen values.
pub enum How<'a> {
    /// Links the file of this step, or writes it if that is not possible.
    Linked(u64, &'a Manifest),
    /// Writes it, or links that of an earlier step if it has the same bytes.
    Written(Option<u64>),
}

/// Saves as the ranks of a run do.
pub fn save(storage: &dyn Storage, sample: &Sample, step: u64, how: &How<'_>) -> Result<Manifest> {
    save_as(RANKS, storage, sample, step, how)
}

fn save_as(
    ranks: usize,
    storage: &dyn Storage,
    sample: &Sample,
    step: u64,
    how: &How<'_>,
) -> Result<Manifest> {
    let staging = StagingDir::new(step)?;
    let mut entries = Vec::new();
    for (rank, shard) in sample.cut(&[40, 90, 150, 200], ranks).into_iter().enumerate() {
        let (frozen, items): (Vec<_>, Vec<_>) =
            shard.items.into_iter().partition(|item| is_frozen(&item.unit));
        assert!(!frozen.is_empty(), "rank {rank} has some of what is frozen");
        entries.push(write_shard(storage, &staging, rank, &RankShard { items })?);
        let write = |earlier| write_frozen(storage, &staging, rank, &RankShard { items: frozen }, earlier);
        entries.push(match how {
            How::Linked(from, manifest) => {
                let file = file_of(manifest, rank);
                link_frozen(storage, &staging, *from, file).or_else(|_| write(None))?
            }
            How::Written(earlier) => write(*earlier)?,
        });
    }
    publish(storage, &staging, sample.state.clone(), entries)
}

pub fn file_of(manifest: &Manifest, rank: usize) -> &FileMetadata {
    manifest.files.iter().find(|file| file.name == frozen_file(rank)).unwrap()
}

fn local() -> (Arc<dyn Storage>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Arc::new(LocalStorage::new(folder.path())), folder)
}

/// Where the folder of a step is, in storages that have one.
fn folder_of(root: &Path, step: u64) -> PathBuf {
    let begins = format!("step-{step:08}");
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut found = entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&begins));
    found.next().unwrap()
}

fn path(root: &Path, step: u64, rank: usize) -> PathBuf {
    folder_of(root, step).join(frozen_file(rank))
}

/// The files' numbers on the disk: as many as there are different ones.
fn inodes(root: &Path, steps: &[u64], rank: usize) -> BTreeSet<u64> {
    steps.iter().map(|step| fs::metadata(path(root, *step, rank)).unwrap().ino()).collect()
}

pub fn assert_whole(storage: &Arc<dyn Storage>, step: u64, sample: &Sample, what: &str) {
    let checkpoint = Checkpoint::open(storage.clone(), step).unwrap();
    assert_eq!(checkpoint.verify(), vec![], "{what}");
    assert!(sample.is_in(&checkpoint).unwrap(), "{what}");
}

#[test]
fn later_checkpoints_have_the_same_file_and_keep_it() {
    for (kind, storage, folder) in kinds() {
        let first = sample(1);
        let mut manifest = save(&*storage, &first, 1, &How::Written(None)).unwrap();
        for step in [2, 3] {
            let next = save(&*storage, &later(&first, step as u32), step, &How::Linked(step - 1, &manifest));
            let next = next.unwrap();
            for rank in 0..RANKS {
                assert_eq!(file_of(&next, rank), file_of(&manifest, rank), "{kind}");
                if kind != "memory" {
                    let root = folder.path().join("checkpoints");
                    assert_eq!(inodes(&root, &[1, step], rank).len(), 1, "{kind}");
                }
            }
            manifest = next;
        }
        for removed in [1, 2] {
            let there = storage.published().unwrap().pop().unwrap();
            assert_eq!(there.step, removed);
            storage.remove(&there.folder).unwrap();
            assert_whole(&storage, 3, &later(&first, 3), kind);
        }
        assert_eq!(list(&*storage).unwrap().len(), 1, "{kind}");
    }
}

#[test]
fn a_step_that_is_saved_again_links_the_one_that_it_replaces() {
    for (kind, storage, _folder) in kinds() {
        let first = sample(1);
        let manifest = save(&*storage, &first, 1, &How::Written(None)).unwrap();
        let next = later(&first, 2);
        save(&*storage, &next, 1, &How::Linked(1, &manifest)).unwrap();
        assert_whole(&storage, 1, &next, kind);
    }
}

/// As after a restart: the bytes decide, not what a manifest says.
#[test]
fn an_earlier_file_is_linked_if_all_its_bytes_are_the_same() {
    for (kind, storage, folder) in kinds() {
        let first = sample(1);
        let manifest = save(&*storage, &first, 1, &How::Written(None)).unwrap();
        let next = save(&*storage, &later(&first, 2), 2, &How::Written(Some(1))).unwrap();
        save(&*storage, &sample(3), 3, &How::Written(Some(2))).unwrap();
        save(&*storage, &sample(3), 4, &How::Written(Some(9))).unwrap();
        for (step, sample) in [(1, &first), (2, &later(&first, 2)), (3, &sample(3)), (4, &sample(3))] {
            assert_whole(&storage, step, sample, kind);
        }
        for rank in 0..RANKS {
            assert_eq!(file_of(&next, rank), file_of(&manifest, rank), "{kind}");
            if kind != "memory" {
                let root = folder.path().join("checkpoints");
                assert_eq!(inodes(&root, &[1, 2, 3, 4], rank).len(), 3, "{kind}");
                assert_eq!(inodes(&root, &[1, 2], rank).len(), 1, "{kind}");
            }
        }
    }
}

#[test]
fn a_damaged_file_is_named_in_all_that_have_it_and_not_passed_on_by_a_restart() {
    let (storage, folder) = local();
    let first = sample(1);
    let manifest = save(&*storage, &first, 1, &How::Written(None)).unwrap();
    save(&*storage, &later(&first, 2), 2, &How::Linked(1, &manifest)).unwrap();
    let file = fs::File::options().write(true).open(path(folder.path(), 1, 1)).unwrap();
    let at = file.metadata().unwrap().len() - 1;
    file.write_all_at(&[0x5a], at).unwrap();
    save(&*storage, &later(&first, 3), 3, &How::Written(Some(2))).unwrap();
    for step in [1, 2] {
        let problems = verify(&*storage, step).unwrap();
        assert!(problems.len() == 1 && problems[0].file == "frozen-00001.safetensors", "{problems:?}");
        assert!(problems[0].message.contains("is damaged"), "{problems:?}");
        let checkpoint = Checkpoint::open(storage.clone(), step).unwrap();
        let error = sample(1).is_in(&checkpoint);
        assert!(step == 2 || error.unwrap_err().to_string().contains("frozen-00001.safetensors"));
    }
    assert_whole(&storage, 3, &later(&first, 3), "after a restart");
    assert_eq!(inodes(folder.path(), &[2, 3], 1).len(), 2);
    assert_eq!(inodes(folder.path(), &[1, 2, 3], 0).len(), 1);
}

/// What happens to the checkpoint whose file is to be linked, just before.
#[derive(Debug)]
enum Deed {
    Refuse,
    Remove,
    RemoveFile(PathBuf),
    Shorten(PathBuf),
}

#[derive(Debug)]
struct Before(Arc<dyn Storage>, Deed);

impl Behaviour for Before {
    fn before_link(&self, from: &str, name: &str) -> Result<()> {
        match &self.1 {
            Deed::Refuse => {
                let source = std::io::ErrorKind::Unsupported.into();
                return Err(Error::Io { operation: "link", path: name.into(), source });
            }
            Deed::Remove => self.0.remove(from)?,
            Deed::RemoveFile(folder) => drop(fs::remove_file(folder.join(name))),
            Deed::Shorten(folder) => {
                fs::File::options().write(true).open(folder.join(name)).unwrap().set_len(50).unwrap();
            }
        }
        Ok(())
    }
}

#[test]
fn what_cannot_be_linked_is_written_again() {
    let deeds: [fn(PathBuf) -> Deed; 4] =
        [|_| Deed::Refuse, |_| Deed::Remove, Deed::RemoveFile, Deed::Shorten];
    for deed in deeds {
        for restarted in [false, true] {
            let (storage, folder) = local();
            let first = sample(1);
            let manifest = save(&*storage, &first, 1, &How::Written(None)).unwrap();
            let deed = deed(folder.path().join("step-00000001"));
            let what = format!("{deed:?}, {restarted}");
            let custom = Custom::new(storage.clone(), Before(storage.clone(), deed));
            let how = if restarted { How::Written(Some(1)) } else { How::Linked(1, &manifest) };
            save(&custom, &later(&first, 2), 2, &how).unwrap();
            assert_whole(&storage, 2, &later(&first, 2), &what);
            for rank in 0..RANKS {
                // What was there is not changed by what is written in its place.
                if let Ok(there) = fs::metadata(folder.path().join("step-00000001").join(frozen_file(rank))) {
                    let cut = what.contains("Shorten");
                    assert_eq!(there.len(), if cut { 50 } else { file_of(&manifest, rank).bytes }, "{what}");
                    assert_eq!(there.nlink(), 1, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_death_or_failure_at_every_operation_of_a_save_that_links() {
    let first = sample(1);
    let next = later(&first, 2);
    let keep_one = |storage: &dyn Storage, published: &[_]| {
        keep_latest(storage, published, NonZeroUsize::MIN, |_| false, None)
    };
    for kind in 0..kinds().len() {
        for (restarted, fault) in [(false, Fault::Die), (true, Fault::Die), (true, Fault::Fail)] {
            let attempt = |storage: &dyn Storage, manifest: &Manifest| -> Result<()> {
                let how = if restarted { How::Written(Some(1)) } else { How::Linked(1, manifest) };
                save_as(1, storage, &next, 2, &how)?;
                keep_one(storage, &storage.published()?).map(drop)
            };
            for after in 0.. {
                let (name, storage, _folder) = kinds().swap_remove(kind);
                let manifest = save_as(1, &*storage, &first, 1, &How::Written(None)).unwrap();
                let what = format!("{name}, {fault:?} after {after}, {restarted}");
                let faulty = Faulty::new(storage.clone(), after, fault);
                let ended = attempt(&faulty, &manifest);
                if faulty.counted() <= after {
                    ended.unwrap();
                    assert!(after > 15, "{what}");
                    break;
                }
                remove_stale(&*storage).unwrap();
                assert!(storage.unpublished().unwrap().is_empty(), "{what}");
                let found = list(&*storage).unwrap();
                let newest = found[0].step;
                assert!(newest == 2 || ended.is_err(), "{what}: lost without an error");
                for found in found {
                    assert!(found.summary.is_ok(), "{what}: {found:?}");
                    let sample = if found.step == 2 { &next } else { &first };
                    assert_whole(&storage, found.step, sample, &what);
                }
                // The run goes on with what is left.
                let more = later(&first, 3);
                save_as(1, &*storage, &more, 3, &How::Written(Some(newest))).unwrap();
                keep_one(&*storage, &storage.published().unwrap()).unwrap();
                assert_whole(&storage, 3, &more, &what);
            }
        }
    }
}

/// What builds wrote that knew no frozen files.
#[test]
fn checkpoints_of_the_first_version_are_read() {
    let (storage, folder) = local();
    let sample = sample(1);
    sample.save(&*storage, 1, RANKS).unwrap();
    let manifest = folder.path().join("step-00000001").join(MANIFEST);
    let text = fs::read_to_string(&manifest).unwrap();
    for (version, is_known) in [("1", true), ("0", false)] {
        let older = text.replacen("\"version\":2", &format!("\"version\":{version}"), 1);
        assert_ne!(older, text);
        fs::write(&manifest, &older).unwrap();
        let hash = format!("{}  {MANIFEST}\n", blake3::hash(older.as_bytes()).to_hex());
        fs::write(manifest.with_file_name(MANIFEST_HASH), hash).unwrap();
        match Checkpoint::open(storage.clone(), 1) {
            Ok(checkpoint) => assert!(is_known && sample.is_in(&checkpoint).unwrap()),
            Err(error) => assert!(!is_known && error.to_string().contains("version 0 is unknown"), "{error}"),
        }
    }
    // There is no frozen file to link.
    save(&*storage, &sample, 2, &How::Written(Some(1))).unwrap();
    assert_whole(&storage, 2, &sample, "of an older build");
}
