//! Leftovers of killed writers.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{RANDOM_CHARACTERS, SUFFIX};

/// Removes the unfinished files in `folder` whose names begin like this and whose writers have ended. Files that cannot be listed,
/// opened or locked stay.
pub(super) fn remove(folder: &Path, prefix: &OsStr) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_part =
            is_part(&entry.file_name(), prefix) && entry.file_type().is_ok_and(|kind| kind.is_file());
        let opened = is_part.then(|| File::options().read(true).write(true).open(entry.path()));
        // Held until the name is removed, so that nobody starts to write there. No name is ever used twice.
        if let Some(Ok(file)) = opened
            && file.try_lock().is_ok()
        {
            drop(fs::remove_file(entry.path()));
        }
    }
}

fn is_part(name: &OsStr, prefix: &OsStr) -> bool {
    let random = name.as_bytes().strip_prefix(prefix.as_bytes());
    let random = random.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    random.is_some_and(|random| {
        random.len() == RANDOM_CHARACTERS && random.iter().all(u8::is_ascii_alphanumeric)
    })
}
