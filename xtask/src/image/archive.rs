//! Archives whose bytes follow from their entries.

use std::collections::BTreeMap;

use anyhow::Result;

/// Something in an archive.
#[derive(Debug, Clone)]
pub enum Entry {
    Folder { mode: u32 },
    File { bytes: Vec<u8>, mode: u32 },
}

/// Entries by their paths.
pub type Entries = BTreeMap<String, Entry>;

/// The archive: of root, of no time, in the order of paths.
pub fn archive(entries: &Entries) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, entry) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        match entry {
            Entry::Folder { mode } => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(*mode);
                header.set_size(0);
                builder.append_data(&mut header, format!("{path}/"), &[][..])?;
            }
            Entry::File { bytes, mode } => {
                header.set_mode(*mode);
                header.set_size(bytes.len() as u64);
                builder.append_data(&mut header, path, &bytes[..])?;
            }
        }
    }
    Ok(builder.into_inner()?)
}
