//! Checks that all ranks share the checkpoints' storage, before a checkpoint is saved.

use std::path::Path;
use std::time::{Duration, Instant};

use brigade_checkpoint::{StagingDir, Storage};
use brigade_comm::Group;

use crate::world::all_gather_text;

/// The file that rank 0 writes and the others look for. If rank 0 dies meanwhile, it is removed like an unfinished save.
const FILE: &str = "probe";

/// How long a network file system may take to show on one node what another node wrote.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two attempts to find the file.
const PAUSE: Duration = Duration::from_millis(100);

/// Rank 0 writes a small file as part of an unfinished save, and the others look for it. All ranks call it together and get the
/// same answer: `None`, or which rank does not see which location.
///
/// # Errors
/// If communication between ranks fails.
pub(crate) fn storage_not_shared(
    storage: &dyn Storage,
    group: &Group,
    staging: &StagingDir,
) -> anyhow::Result<Option<String>> {
    if group.size() == 1 {
        return Ok(None);
    }
    let folder = storage.staging_folder(staging);
    let probe = (group.rank() == 0).then(|| ProbeFile::new(storage, &folder));
    let failure = probe.as_ref().and_then(|probe| probe.failure.clone()).unwrap_or_default();
    let failure = all_gather_text(group, &failure)?.swap_remove(0);
    let seen = match group.rank() {
        0 => Ok(()),
        _ if failure.is_empty() => wait_for_probe(storage, &folder, PATIENCE.min(group.op_timeout() / 4)),
        _ => Ok(()),
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own = (storage.location(), host, seen);
    // Plain data serialise without an error.
    let looks = all_gather_text(group, &serde_json::to_string(&own).unwrap_or_default())?;
    drop(probe);
    let looks = looks.iter().map(|text| serde_json::from_str(text)).collect::<Result<Vec<_>, _>>()?;
    Ok(problem(&failure, &looks))
}

/// Where a rank looked, on which host, and why it did not see the file.
type Look = (String, String, Result<(), String>);

fn problem(failure: &str, looks: &[Look]) -> Option<String> {
    let (location, host, _) = looks.first()?;
    if !failure.is_empty() {
        return Some(format!("rank 0 on {host} cannot save checkpoints in {location}: {failure}"));
    }
    let misses = |look: &&(usize, &Look)| look.1.2.is_err();
    let all: Vec<_> = looks.iter().enumerate().collect();
    let (_, (elsewhere, other, seen)) = all.iter().find(misses)?;
    let why = seen.as_ref().err()?;
    let ranks: Vec<String> = all.iter().filter(misses).map(|(rank, _)| rank.to_string()).collect();
    Some(format!(
        "checkpoints need a location that all nodes share: what rank 0 on {host} writes to {location} {why} {elsewhere}, where rank \
         {} on {other} looks for it; set --out (or checkpoint.dir) to a shared folder, or checkpoint.dir to the URL of an object store",
        ranks.join(", ")
    ))
}

/// Rank 0's file; dropping this removes it.
struct ProbeFile<'a> {
    storage: &'a dyn Storage,
    folder: &'a str,
    /// Whether the location was created for it.
    created: bool,
    failure: Option<String>,
}

impl<'a> ProbeFile<'a> {
    fn new(storage: &'a dyn Storage, folder: &'a str) -> Self {
        let created = !Path::new(storage.location()).exists();
        let write = || -> brigade_checkpoint::Result<()> {
            let mut file = storage.create(folder, FILE, FILE.len() as u64)?;
            file.write(FILE.as_bytes())?;
            file.finish()
        };
        let failure = write().err().map(|error| error.to_string());
        Self { storage, folder, created, failure }
    }
}

impl Drop for ProbeFile<'_> {
    fn drop(&mut self) {
        // If this fails, the file counts as an unfinished save and is removed later.
        drop(self.storage.remove(self.folder));
        if self.created {
            // It fails if the location is not an empty folder, which is then not ours to remove.
            drop(std::fs::remove_dir(self.storage.location()));
        }
    }
}

fn wait_for_probe(storage: &dyn Storage, folder: &str, patience: Duration) -> Result<(), String> {
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

    /// The answers of three ranks, of which the last one has a location of its own.
    fn answers(first: &Path, last: &Path) -> Vec<Option<String>> {
        let staging = StagingDir::new(0).unwrap();
        let ask = |group: Group| {
            let location = if group.rank() == 2 { last } else { first };
            storage_not_shared(&LocalStorage::new(location), &group, &staging).unwrap()
        };
        let timeouts = Timeouts { step: Duration::from_secs(20), ..Timeouts::default() };
        std::thread::scope(|scope| {
            let ranks: Vec<_> =
                threads(3, timeouts).into_iter().map(|group| scope.spawn(|| ask(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_with_other_folders_are_named_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        assert_eq!(answers(&a, &a), [None, None, None]);
        for answer in answers(&a, &b) {
            let answer = answer.unwrap();
            for part in
                [&format!("to {}", a.display()), &format!("in {}, where rank 2 on ", b.display()), "--out"]
            {
                assert!(answer.contains(part), "{answer}");
            }
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        // A folder that was there stays.
        std::fs::create_dir(&a).unwrap();
        answers(&a, &a);
        assert_eq!(a.read_dir().unwrap().count(), 0);
        std::fs::write(&b, "a file").unwrap();
        let answer = answers(&b, &b).swap_remove(1).unwrap();
        assert!(
            answer.contains("cannot save checkpoints in") && answer.contains(b.to_str().unwrap()),
            "{answer}"
        );
    }

    #[test]
    fn what_a_killed_rank_leaves_is_cleaned_up() {
        let folder = tempfile::tempdir().unwrap();
        let storage = LocalStorage::new(folder.path());
        let name = storage.staging_folder(&StagingDir::new(0).unwrap());
        std::mem::forget(ProbeFile::new(&storage, &name));
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        assert_eq!(remove_stale(&storage).unwrap(), [name]);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
