//! A damaged file is found by its name.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_checkpoint::{
    Checkpoint, LocalStorage, MANIFEST, MANIFEST_HASH, Storage, list, rank_file, verify,
};

use crate::sample::Sample;
use crate::storages::kinds;

const RANKS: usize = 3;

struct Small {
    storage: Arc<dyn Storage>,
    sample: Sample,
    folder: PathBuf,
    _keep: tempfile::TempDir,
}

impl Small {
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(LocalStorage::new(keep.path()));
        let sample = Sample::new(&[7, 4], 1);
        sample.save(&*storage, 1, RANKS).unwrap();
        Self { storage, sample, folder: keep.path().join("step-00000001"), _keep: keep }
    }

    fn files(&self) -> Vec<String> {
        let mut files: Vec<_> = (0..RANKS).map(rank_file).collect();
        files.extend([MANIFEST.into(), MANIFEST_HASH.into()]);
        files
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The names of the files that are found to be damaged, with what is said of them.
    fn found(&self) -> Vec<String> {
        let found = list(&*self.storage).unwrap();
        assert_eq!(found.len(), 1);
        if let Err(error) = &found[0].summary {
            assert!(Checkpoint::open(self.storage.clone(), 1).is_err());
            assert!(!verify(&*self.storage, 1).unwrap().is_empty());
            return vec![error.to_string()];
        }
        let checkpoint = Checkpoint::open(self.storage.clone(), 1).unwrap();
        checkpoint.verify().iter().map(|problem| problem.to_string()).collect()
    }

    /// Exactly one problem, which names the file.
    fn assert_found(&self, file: &str, what: &str) {
        let found = self.found();
        assert!(found.len() == 1 && found[0].contains(file), "{file} {what}: {found:?}");
    }
}

/// Gives a file another content for a while. It is changed in place, as emptying it first is slow on some disks.
fn with_content(path: &Path, content: &[u8], then: impl FnOnce()) {
    let original = fs::read(path).unwrap();
    let put = |content: &[u8]| {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(content, 0).unwrap();
        file.set_len(content.len() as u64).unwrap();
    };
    put(content);
    then();
    put(&original);
}

#[test]
fn every_flipped_byte() {
    let small = Small::new();
    assert_eq!(small.found(), Vec::<String>::new());
    for file in small.files() {
        let path = small.path(&file);
        let original = fs::read(&path).unwrap();
        let data = usize::from(original[0]) + 256 * usize::from(original[1]) + 8;
        for at in 0..original.len() {
            for flip in [1 << (at % 8), 0x20, 0xff] {
                let mut content = original.clone();
                content[at] ^= flip;
                with_content(&path, &content, || {
                    small.assert_found(&file, &format!("with byte {at} flipped"));
                    if file.starts_with("rank-") && at >= data {
                        let checkpoint = Checkpoint::open(small.storage.clone(), 1).unwrap();
                        let error = small.sample.is_in(&checkpoint).unwrap_err().to_string();
                        assert!(error.contains(&file) && error.contains("chunk 0 (at byte 0)"), "{error}");
                    }
                });
            }
        }
    }
    assert_eq!(small.found(), Vec::<String>::new());
}

#[test]
fn every_length() {
    let small = Small::new();
    for file in small.files() {
        let path = small.path(&file);
        let original = fs::read(&path).unwrap();
        for length in 0..original.len() {
            with_content(&path, &original[..length], || small.assert_found(&file, "cut off"));
        }
        let longer = [&original[..], b" "].concat();
        with_content(&path, &longer, || small.assert_found(&file, "lengthened"));
    }
}

#[test]
fn all_problems_are_told() {
    let small = Small::new();
    fs::remove_file(small.path(&rank_file(0))).unwrap();
    fs::write(small.path(&rank_file(2)), "short").unwrap();
    let problems: Vec<_> = verify(&*small.storage, 1).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2);
    assert!(problems[0].contains("rank-00000.safetensors: the file is missing"), "{problems:?}");
    assert!(problems[1].contains("rank-00002.safetensors: 5 bytes, but its rank wrote"), "{problems:?}");
    assert!(verify(&*small.storage, 2).is_err());
}

#[test]
fn missing_files() {
    let small = Small::new();
    for file in small.files() {
        let (path, aside) = (small.path(&file), small.path("aside"));
        fs::rename(&path, &aside).unwrap();
        small.assert_found(&file, "missing");
        fs::rename(&aside, &path).unwrap();
    }
}

#[test]
fn swapped_files() {
    let small = Small::new();
    for (left, right) in [(0, 1), (0, 2), (1, 2)] {
        let swap = || {
            let (a, b) = (small.path(&rank_file(left)), small.path(&rank_file(right)));
            let aside = small.path("aside");
            fs::rename(&a, &aside).unwrap();
            fs::rename(&b, &a).unwrap();
            fs::rename(&aside, &b).unwrap();
        };
        swap();
        let found = small.found();
        assert!(found.iter().any(|problem| problem.contains(&rank_file(left))), "{found:?}");
        swap();
    }
    assert_eq!(small.found(), Vec::<String>::new());
}

#[test]
fn files_of_equal_size_that_were_exchanged() {
    use brigade_checkpoint::{PARAMETERS, RankShard, StagingDir, WriteItem, publish, write_shard};
    for (kind, storage, folder) in kinds() {
        let mut sample = Sample::new(&[8], 4);
        sample.state.units[0].slots = vec![PARAMETERS.into()];
        let values = &sample.values[&("block.0".into(), PARAMETERS.into())];
        let staging = StagingDir::with_id(1, "a").unwrap();
        let item = |start: usize| WriteItem {
            unit: "block.0".into(),
            slot: PARAMETERS.into(),
            start,
            values: values[start..start + 4].to_vec(),
        };
        let write = |rank: usize, start| {
            write_shard(&*storage, &staging, rank, &RankShard { items: vec![item(start)] }).unwrap()
        };
        publish(&*storage, &staging, sample.state.clone(), vec![write(0, 0), write(1, 4)]).unwrap();
        let visible = match kind {
            "local" => folder.path().join("checkpoints/step-00000001"),
            "file" => folder.path().join("checkpoints/step-00000001.a"),
            _ => continue,
        };
        let (a, b) = (visible.join(rank_file(0)), visible.join(rank_file(1)));
        let bytes = fs::read(&a).unwrap();
        fs::copy(&b, &a).unwrap();
        fs::write(&b, bytes).unwrap();
        assert!(list(&*storage).unwrap()[0].summary.is_ok());
        let checkpoint = Checkpoint::open(storage, 1).unwrap();
        let problems: Vec<_> = checkpoint.verify().iter().map(|problem| problem.to_string()).collect();
        let expected = [
            "rank-00000.safetensors: it holds what was written as rank-00001.safetensors",
            "rank-00001.safetensors: it holds what was written as rank-00000.safetensors",
        ];
        assert_eq!(problems, expected, "{kind}");
        assert!(checkpoint.read("block.0", PARAMETERS, 0..8, &mut [0.0; 8]).is_err());
    }
}

#[test]
fn a_file_of_another_step() {
    let small = Small::new();
    Sample::new(&[7, 4], 2).save(&*small.storage, 0, RANKS).unwrap();
    let other = small.folder.with_file_name("step-00000000");
    for rank in 0..RANKS {
        let file = rank_file(rank);
        let path = small.path(&file);
        let original = fs::read(&path).unwrap();
        let stale = fs::read(other.join(&file)).unwrap();
        assert_eq!(stale.len(), original.len());
        fs::write(&path, stale).unwrap();
        let problems = Checkpoint::open(small.storage.clone(), 1).unwrap().verify();
        assert_eq!(problems.iter().map(|problem| &*problem.file).collect::<Vec<_>>(), [&file]);
        fs::write(&path, original).unwrap();
    }
    // A whole folder under another step's name.
    fs::rename(&other, small.folder.with_file_name("step-00000005")).unwrap();
    let found = list(&*small.storage).unwrap();
    let error = found[0].summary.as_ref().unwrap_err().to_string();
    assert!(error.contains("is of step 0, its folder of step 5"), "{error}");
    assert!(found[1].summary.is_ok());
}

#[test]
fn a_newer_format_is_refused() {
    let small = Small::new();
    let path = small.path(MANIFEST);
    let newer = fs::read_to_string(&path).unwrap().replace("\"version\":2", "\"version\":3");
    fs::write(&path, &newer).unwrap();
    fs::write(
        small.path(MANIFEST_HASH),
        format!("{}  {MANIFEST}\n", blake3::hash(newer.as_bytes()).to_hex()),
    )
    .unwrap();
    let error = Checkpoint::open(small.storage.clone(), 1).unwrap_err().to_string();
    assert!(error.contains("its format is version 3, this build reads up to version 2"), "{error}");
}
