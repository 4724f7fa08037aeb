//! A disk that can be filled.

use std::ffi::CString;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `test` with a folder that is a file system of its own, with room for `kibibytes`. Only the thread that `test` runs
/// on sees what is in it, and it goes away with that thread. Where this process may mount nothing, the test is skipped, and
/// says so.
///
/// # Panics
/// If `test` panics, or there is no temporary folder.
pub fn on_small_disk(kibibytes: usize, test: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
    let run = || match mount_at(folder.path(), kibibytes) {
        Ok(()) => test(folder.path()),
        Err(error) => println!("skipped: no file system can be mounted here ({error})"),
    };
    if let Err(panic) = std::thread::scope(|scope| scope.spawn(run).join()) {
        std::panic::resume_unwind(panic);
    }
}

/// Mounts a file system that this thread alone sees.
fn mount_at(folder: &Path, kibibytes: usize) -> io::Result<()> {
    let options = CString::new(format!("size={kibibytes}k"))?;
    // SAFETY: from here on only mounts are the thread's own; files stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(mount("brigade-test", folder, "tmpfs", MountFlags::empty(), options.as_c_str())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_fills_and_is_gone_afterwards() {
        let mut place = None;
        on_small_disk(64, |folder| {
            std::fs::write(folder.join("fits"), [0; 16 << 10]).unwrap();
            let error = std::fs::write(folder.join("does-not"), [0; 64 << 10]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            place = Some(folder.to_owned());
        });
        assert!(place.is_none_or(|place| !place.exists()));
    }

    #[test]
    #[should_panic(expected = "of the test")]
    fn panics_come_through() {
        on_small_disk(64, |_| panic!("of the test"));
        // Where nothing can be mounted, the test above does not run.
        panic!("of the test");
    }
}
