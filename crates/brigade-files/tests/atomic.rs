//! Files are whole or absent, and nothing else is left.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use brigade_files::{AtomicFile, write_atomic};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_whole_with_the_permissions_of_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let (target, plain) = (folder.path().join("a"), folder.path().join("plain"));
    File::create(&plain).unwrap();
    fs::write(&target, "before").unwrap();
    let mut file = AtomicFile::create(&target).unwrap();
    file.write_all(b"after").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"before");
    let mut file = file.commit().unwrap();
    file.write_all(b"wards").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"afterwards");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&target), mode(&plain));
    assert_eq!(names(folder.path()), ["a", "plain"]);
}

#[test]
fn what_is_not_committed_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let mut file = AtomicFile::create(&target).unwrap();
    file.write_all(b"half").unwrap();
    assert_eq!(names(folder.path()).len(), 1);
    drop(file);
    assert!(names(folder.path()).is_empty());
    // The target becomes something that cannot be replaced while the file is written.
    let file = AtomicFile::create(&target).unwrap();
    fs::create_dir(&target).unwrap();
    assert!(file.commit().is_err());
    assert_eq!(names(folder.path()), ["a"]);
}

#[test]
fn targets_of_any_name_and_kind() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let long = "x".repeat(255);
    for name in ["w.5", ".hidden", "w", long.as_str()] {
        write_atomic(&at(name), name.as_bytes()).unwrap();
    }
    assert_eq!(names(folder.path()), [".hidden", "w", "w.5", long.as_str()]);
    symlink(at("w"), at("link")).unwrap();
    write_atomic(&at("link"), b"new").unwrap();
    assert!(at("link").symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read(at("w")).unwrap(), b"w", "a link is replaced, not followed");
    for refused in [Path::new("/dev/null"), folder.path()] {
        let error = write_atomic(refused, b"x").unwrap_err().to_string();
        assert_eq!(error, "it exists and is not a regular file");
    }
    assert!(write_atomic(Path::new("/"), b"x").is_err() && write_atomic(Path::new(".."), b"x").is_err());
    assert!(write_atomic(&at("none/a"), b"x").is_err());
    assert!(!Path::new("/dev/null").symlink_metadata().unwrap().is_file());
}

#[test]
fn writers_of_one_folder_share_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let write = |writer: u8| {
        for round in 0..50_u8 {
            let target = folder.path().join(["w.5", "w.10", "w"][usize::from(writer) % 3]);
            let mut file = AtomicFile::create(&target).unwrap();
            for _ in 0..20 {
                file.write_all(&[writer, round]).unwrap();
            }
            file.commit().unwrap();
            let read = fs::read(&target).unwrap();
            let mine = usize::from(read[0]) % 3 == usize::from(writer) % 3;
            assert!(mine && read == read[..2].repeat(20), "{read:?}");
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..6).map(|writer| scope.spawn(move || write(writer))).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    assert_eq!(names(folder.path()), ["w", "w.10", "w.5"]);
}

/// Where a process of the test below writes, and is killed at it.
const KILLED: &str = "BRIGADE_TEST_KILLED_WRITER";

#[test]
fn what_a_killed_writer_left_is_removed_and_what_is_being_written_stays() {
    if let Some(target) = std::env::var_os(KILLED) {
        let mut file = AtomicFile::create(Path::new(&target)).unwrap();
        file.write_all(b"half").unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("w");
    for target in ["w", "w.abcdefgh"] {
        let mut writer = Command::new(std::env::current_exe().unwrap());
        writer.args(["--exact", "what_a_killed_writer_left_is_removed_and_what_is_being_written_stays"]);
        assert!(!writer.env(KILLED, folder.path().join(target)).output().unwrap().status.success());
    }
    let others = [".w.part", ".w.1234567.part", ".w.1234567+.part", ".w.12345678.parts"];
    others.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
    let live = AtomicFile::create(&target).unwrap();
    assert_eq!(names(folder.path()).len(), 1 + others.len() + 1, "of the killed, the other target's stays");
    write_atomic(&target, b"whole").unwrap();
    live.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"");
    write_atomic(&folder.path().join("w.abcdefgh"), b"").unwrap();
    let mut left: Vec<_> = [&others[..], &["w", "w.abcdefgh"]].concat();
    left.sort_unstable();
    assert_eq!(names(folder.path()), left);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_keeps_nothing_but_what_was_there() {
    brigade_testing::on_small_disk(256, |folder| {
        let target = folder.join("a");
        write_atomic(&target, b"before").unwrap();
        let error = write_atomic(&target, &[0; 300 << 10]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        assert_eq!((fs::read(&target).unwrap(), names(folder)), (b"before".to_vec(), vec!["a".into()]));
        write_atomic(&target, &[0; 200 << 10]).unwrap();
    });
}

#[test]
fn what_is_there_is_replaced_only_if_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let part = |content: &[u8]| {
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(content).unwrap();
        file
    };
    let (first, second) = (part(b"first"), part(b"second"));
    first.commit_new().unwrap();
    assert_eq!(second.commit_new().unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&target).unwrap(), b"first");
    part(b"third").commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"third");
    assert_eq!(names(folder.path()), ["a"]);
}
