//! Saving in the background.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_checkpoint::{Checkpoint, Error, LocalStorage, Result, Save, Staging, publish};

use crate::sample::Sample;
use crate::storages::{Behaviour, Custom, Fault, Faulty, kinds};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_entry_and_the_memory_come_back() {
    let sample = Sample::new(&[1000, 50], 1);
    for (kind, storage, _folder) in kinds() {
        let staging = Staging::new(9).unwrap();
        let snapshots = sample.cut(&[100], 2);
        let mut saves: Vec<_> = snapshots
            .iter()
            .enumerate()
            .map(|(rank, snapshot)| {
                Save::start(storage.clone(), staging.clone(), rank, snapshot.clone()).unwrap()
            })
            .collect();
        let mut entries = Vec::new();
        for (save, snapshot) in saves.iter_mut().zip(&snapshots) {
            let saved = save.wait(LONG).unwrap();
            assert_eq!(saved.snapshot.bytes(), snapshot.bytes());
            entries.push(saved.entry);
            assert!(matches!(save.wait(LONG), Err(Error::SaveTaken { step: 9, .. })));
        }
        publish(&*storage, &staging, sample.state.clone(), entries).unwrap();
        let checkpoint = Checkpoint::open(storage, 9).unwrap();
        assert!(sample.is_in(&checkpoint).unwrap(), "{kind}");
    }
}

/// Waits before the first write until it is let go.
#[derive(Debug)]
struct Gate(Mutex<Receiver<()>>);

impl Behaviour for Gate {
    fn before_write(&self, written: u64, _bytes: &[u8]) -> Result<()> {
        if written == 0 {
            self.0.lock().unwrap().recv_timeout(LONG).unwrap();
        }
        Ok(())
    }
}

fn gated(folder: &tempfile::TempDir) -> (Sender<()>, Save) {
    let (sender, receiver) = channel();
    let storage = Custom::new(Arc::new(LocalStorage::new(folder.path())), Gate(Mutex::new(receiver)));
    let snapshot = Sample::new(&[10], 1).cut(&[], 1).remove(0);
    (sender, Save::start(Arc::new(storage), Staging::new(4).unwrap(), 3, snapshot).unwrap())
}

#[test]
fn a_slow_save_meets_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let (go, mut save) = gated(&folder);
    assert!(!save.is_done());
    let error = save.wait(Duration::from_millis(20)).unwrap_err().to_string();
    assert!(error.starts_with("rank 3: saving step 4 has not ended within"), "{error}");
    go.send(()).unwrap();
    save.wait(LONG).unwrap();
    let began = Instant::now();
    while !save.is_done() {
        assert!(began.elapsed() < LONG);
        std::thread::yield_now();
    }
}

#[test]
fn a_panic_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    // Without its sender the gate panics.
    let (go, mut save) = gated(&folder);
    drop(go);
    let error = save.wait(LONG).unwrap_err();
    assert!(
        matches!(&error, Error::SavePanicked { rank: 3, step: 4, message } if message.contains("Disconnected"))
    );
}

#[test]
fn an_error_comes_back() {
    let (_, storage, _folder) = kinds().swap_remove(0);
    let faulty = Faulty::new(storage, 1, Fault::Fail);
    let snapshot = Sample::new(&[10], 1).cut(&[], 1).remove(0);
    let mut save = Save::start(Arc::new(faulty), Staging::new(4).unwrap(), 0, snapshot).unwrap();
    assert!(save.wait(LONG).unwrap_err().to_string().contains("fault on demand"));
}
