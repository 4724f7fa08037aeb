//! Whether all ranks reach one place of checkpoints, found out before any is saved.

use std::path::Path;
use std::time::{Duration, Instant};

use brigade_checkpoint::{StagingDir, Storage};
use brigade_comm::Group;

use crate::world::texts;

/// The file that rank 0 writes and the others look for. A save that died is cleaned up with it.
const FILE: &str = "reach";

/// How long a network file system may take to show on one node what another one wrote.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Lets rank 0 write a small file as if it were a save's, and the others look for it. All ranks call it together, and get
/// the same answer: nothing, or which rank does not reach which place.
///
/// # Errors
/// If ranks cannot talk.
pub(crate) fn out_of_reach(
    storage: &dyn Storage,
    group: &Group,
    staging: &StagingDir,
) -> anyhow::Result<Option<String>> {
    if group.size() == 1 {
        return Ok(None);
    }
    let folder = storage.staging_folder(staging);
    let written = (group.rank() == 0).then(|| Written::new(storage, &folder));
    let failure = written.as_ref().and_then(|written| written.failure.clone()).unwrap_or_default();
    let failure = texts(group, &failure)?.swap_remove(0);
    let seen = match group.rank() {
        0 => Ok(()),
        _ if failure.is_empty() => look(storage, &folder, PATIENCE.min(group.op_timeout() / 4)),
        _ => Ok(()),
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own = (storage.location(), host, seen);
    // Plain data become text without an error.
    let words = texts(group, &serde_json::to_string(&own).unwrap_or_default())?;
    drop(written);
    let places = words.iter().map(|word| serde_json::from_str(word)).collect::<Result<Vec<_>, _>>()?;
    Ok(complaint(&failure, &places))
}

/// Where a rank looked, on which host, and what it did not see.
type Look = (String, String, Result<(), String>);

fn complaint(failure: &str, looks: &[Look]) -> Option<String> {
    let (place, host, _) = looks.first()?;
    if !failure.is_empty() {
        return Some(format!("rank 0 on {host} cannot save checkpoints in {place}: {failure}"));
    }
    let blind = |look: &&(usize, &Look)| look.1.2.is_err();
    let all: Vec<_> = looks.iter().enumerate().collect();
    let (_, (elsewhere, other, seen)) = all.iter().find(blind)?;
    let why = seen.as_ref().err()?;
    let ranks: Vec<String> = all.iter().filter(blind).map(|(rank, _)| rank.to_string()).collect();
    Some(format!(
        "checkpoints need one place for all nodes: what rank 0 on {host} writes to {place} {why} {elsewhere}, where rank {} on \
         {other} looks for it; give --out (or checkpoint.dir) a folder that all nodes share, or checkpoint.dir the URL of an \
         object store",
        ranks.join(", ")
    ))
}

/// The file, until this is dropped.
struct Written<'a> {
    storage: &'a dyn Storage,
    folder: &'a str,
    /// Whether the place was made for it.
    made: bool,
    failure: Option<String>,
}

impl<'a> Written<'a> {
    fn new(storage: &'a dyn Storage, folder: &'a str) -> Self {
        let made = !Path::new(storage.location()).exists();
        let write = || -> brigade_checkpoint::Result<()> {
            let mut file = storage.create(folder, FILE, FILE.len() as u64)?;
            file.write(FILE.as_bytes())?;
            file.finish()
        };
        let failure = write().err().map(|error| error.to_string());
        Self { storage, folder, made, failure }
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        // What stays is taken for a save that died.
        drop(self.storage.remove(self.folder));
        if self.made {
            // It is empty, or no folder at all.
            drop(std::fs::remove_dir(self.storage.location()));
        }
    }
}

fn look(storage: &dyn Storage, folder: &str, patience: Duration) -> Result<(), String> {
    let until = Instant::now() + patience;
    loop {
        match storage.open(folder, FILE) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) if Instant::now() < until => std::thread::sleep(PAUSE),
            Ok(None) => return Err("does not appear in".into()),
            Err(error) => return Err(format!("cannot be read ({error}) in")),
        }
    }
}

#[cfg(test)]
mod tests {
    use brigade_checkpoint::{LocalStorage, remove_stale};
    use brigade_comm::{Timeouts, threads};

    use super::*;

    /// The answers of three ranks, the last one with a place of its own.
    fn answers(first: &Path, last: &Path) -> Vec<Option<String>> {
        let staging = StagingDir::new(0).unwrap();
        let ask = |group: Group| {
            let place = if group.rank() == 2 { last } else { first };
            out_of_reach(&LocalStorage::new(place), &group, &staging).unwrap()
        };
        let timeouts = Timeouts { step: Duration::from_secs(20), ..Timeouts::default() };
        std::thread::scope(|scope| {
            let ranks: Vec<_> =
                threads(3, timeouts).into_iter().map(|group| scope.spawn(|| ask(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_with_other_folders_are_named_and_nothing_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        assert_eq!(answers(&a, &a), [None, None, None]);
        for told in answers(&a, &b) {
            let told = told.unwrap();
            for part in
                [&format!("to {}", a.display()), &format!("in {}, where rank 2 on ", b.display()), "--out"]
            {
                assert!(told.contains(part), "{told}");
            }
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        // A folder that was there stays.
        std::fs::create_dir(&a).unwrap();
        answers(&a, &a);
        assert_eq!(a.read_dir().unwrap().count(), 0);
        std::fs::write(&b, "a file").unwrap();
        let told = answers(&b, &b).swap_remove(1).unwrap();
        assert!(told.contains("cannot save checkpoints in") && told.contains(b.to_str().unwrap()), "{told}");
    }

    #[test]
    fn what_a_killed_rank_leaves_is_cleaned_up() {
        let folder = tempfile::tempdir().unwrap();
        let storage = LocalStorage::new(folder.path());
        let name = storage.staging_folder(&StagingDir::new(0).unwrap());
        std::mem::forget(Written::new(&storage, &name));
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        assert_eq!(remove_stale(&storage).unwrap(), [name]);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
