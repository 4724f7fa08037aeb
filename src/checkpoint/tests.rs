//! Ranks that save together on a disk that is just large enough, or too small.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use brigade_checkpoint::{
    CheckpointDir, LocalStorage, Result, StagingDir, Storage, StorageReader, StorageWriter, TrainState,
    remove_stale,
};
use brigade_comm::{Group, Timeouts, threads};
use brigade_core::{Engine, EngineSettings, Groups};

use super::{FIRST_MODEL, ModelSnapshot, SaveOutcome, SaveProgress, Saver};
use crate::settings::Settings;
use crate::test_model::layers;

const RANKS: usize = 8;

/// A disk of limited size. Each query of the free space takes longer than the one before, so that the first rank could write
/// meanwhile.
#[derive(Debug)]
struct Disk {
    files: LocalStorage,
    root: std::path::PathBuf,
    room: u64,
    looks: AtomicU64,
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => bytes_in(&entry.path()),
            _ => entry.metadata().map_or(0, |metadata| metadata.len()),
        })
        .sum()
}

impl Storage for Disk {
    fn location(&self) -> &str {
        self.files.location()
    }
    fn staging_folder(&self, staging: &StagingDir) -> String {
        self.files.staging_folder(staging)
    }
    fn create(&self, folder: &str, name: &str, bytes: u64) -> Result<Box<dyn StorageWriter>> {
        self.files.create(folder, name, bytes)
    }
    fn link(&self, from: &str, to: &str, name: &str) -> Result<()> {
        self.files.link(from, to, name)
    }
    fn open(&self, folder: &str, name: &str) -> Result<Option<Box<dyn StorageReader>>> {
        self.files.open(folder, name)
    }
    fn published(&self) -> Result<Vec<CheckpointDir>> {
        self.files.published()
    }
    fn publish(&self, staging: &StagingDir) -> Result<()> {
        self.files.publish(staging)
    }
    fn remove(&self, folder: &str) -> Result<()> {
        self.files.remove(folder)
    }
    fn unpublished(&self) -> Result<Vec<String>> {
        self.files.unpublished()
    }
    fn free_space(&self) -> Result<Option<u64>> {
        let number = self.looks.fetch_add(1, Ordering::Relaxed) % RANKS as u64;
        thread::sleep(Duration::from_millis(25 * number));
        Ok(Some(self.room.saturating_sub(bytes_in(&self.root))))
    }
}

/// Lets each rank save; returns how each ended, and the bytes written.
fn saved(root: &Path, room: impl Fn(u64) -> u64) -> (Vec<(SaveProgress, String)>, u64) {
    let settings = Settings::default();
    let engine = || {
        let optimizer = settings.optimizer.factory().unwrap();
        let plan = settings.plan(1, 1).unwrap();
        Engine::new(
            layers(64, &["a"]),
            0,
            &optimizer,
            Groups::single_rank(),
            EngineSettings { ..plan.engine },
        )
        .unwrap()
    };
    let all = RANKS as u64 * engine().snapshot().unwrap().bytes();
    // Headers of files come on top.
    let room = room(all + RANKS as u64 * 1024);
    let disk = Disk { files: LocalStorage::new(root), root: root.into(), room, looks: AtomicU64::new(0) };
    let disk: Arc<dyn Storage> = Arc::new(disk);
    let rank = |group: Group| {
        let mut saver =
            Saver::new(disk.clone(), &root.to_string_lossy(), group, settings.checkpoint.clone()).unwrap();
        let model = ModelSnapshot { model: FIRST_MODEL.into(), snapshot: engine().snapshot().unwrap() };
        saver.begin(1, vec![model], TrainState::default(), Instant::now()).unwrap();
        let begin = Instant::now();
        while saver.progress() == SaveProgress::Working {
            assert!(begin.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        (saver.progress(), saver.failure())
    };
    let ends = thread::scope(|scope| {
        let rank = &rank;
        let worlds = threads(RANKS, Timeouts::default());
        let started: Vec<_> = worlds.into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let written = bytes_in(root);
    remove_stale(&*disk).unwrap();
    (ends, written)
}

#[test]
fn what_fits_is_saved_however_many_write_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (ends, written) = saved(folder.path(), |needed| needed);
    assert!(ends.iter().all(|(progress, _)| *progress == SaveProgress::Done), "{ends:?}");
    assert!(written > 0);
}

#[test]
fn what_does_not_fit_is_refused_before_any_rank_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (ends, written) = saved(folder.path(), |needed| needed / 2);
    for (progress, why) in &ends {
        assert!(*progress == SaveProgress::Failed && why.contains("a checkpoint needs"), "{ends:?}");
    }
    assert_eq!(written, 0);
}

/// The save fails as any other does, so that `checkpoint.on_failure` decides what follows.
#[test]
fn ranks_that_differ_in_a_unit_fail_the_save_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage::new(folder.path()));
    let results = folder.path().to_string_lossy();
    let save = |group: Group| {
        let settings = Settings::default();
        let optimizer = settings.optimizer.factory().unwrap();
        let of_engine = settings.plan(1, 1).unwrap().engine;
        let model = layers(2 + group.rank(), &["a"]);
        let engine = Engine::new(model, 0, &optimizer, Groups::single_rank(), of_engine).unwrap();
        let model = ModelSnapshot { model: FIRST_MODEL.into(), snapshot: engine.snapshot().unwrap() };
        let mut saver = Saver::new(storage.clone(), &results, group, settings.checkpoint).unwrap();
        saver.begin(1, vec![model], TrainState::default(), Instant::now()).unwrap();
        saver.wait(|| ()).unwrap()
    };
    thread::scope(|scope| {
        let save = &save;
        let worlds = threads(2, Timeouts::default());
        let ranks: Vec<_> = worlds.into_iter().map(|group| scope.spawn(move || save(group))).collect();
        for outcome in ranks.into_iter().map(|rank| rank.join().unwrap()) {
            let Some(SaveOutcome::Failed(why)) = &outcome else { panic!("{outcome:?}") };
            assert!(why.starts_with("rank 0: rank 1 and an earlier one differ in unit"), "{why}");
        }
    });
    assert!(storage.published().unwrap().is_empty());
}

/// The second one is complete before the first goes.
#[cfg(feature = "object-store")]
#[test]
fn a_step_that_is_saved_again_goes_to_a_place_of_its_own() {
    let store: Arc<dyn Storage> = Arc::new(brigade_checkpoint::ObjectStorage::in_memory().unwrap());
    let settings = Settings::default().checkpoint;
    let group = threads(1, Timeouts::default()).remove(0);
    let results = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(store.clone(), &results.path().to_string_lossy(), group, settings).unwrap();
    let mut places = Vec::new();
    for _ in 0..2 {
        saver.begin(1, Vec::new(), TrainState::default(), Instant::now()).unwrap();
        let outcome = saver.wait(|| ()).unwrap();
        assert!(matches!(outcome, Some(SaveOutcome::Saved { .. })), "{outcome:?}");
        places.extend(store.published().unwrap().into_iter().map(|there| there.folder));
    }
    assert!(places.len() == 2 && places[0] != places[1], "{places:?}");
}
