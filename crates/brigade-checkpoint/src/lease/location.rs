//! Where leases are written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::error::{Error, Result};

/// What a lease needs of the location where it is written. Names are those of files.
pub trait LeaseLocation: Send + Sync {
    /// The location as text: a path or a URL.
    fn text(&self) -> String;

    /// All names there; none where there is nothing yet.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`].
    fn names(&self) -> Result<Vec<String>>;

    /// Writes a file if there is none of this name, and says whether it did: of several at once, one does.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`].
    fn create(&self, name: &str, content: &[u8]) -> Result<bool>;

    /// Writes or replaces a file.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`].
    fn write(&self, name: &str, content: &[u8]) -> Result<()>;

    /// A file, and when it was written, in time since 1970 by the clock of the location; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`].
    fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Duration)>>;

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Object`].
    fn remove(&self, name: &str) -> Result<()>;
}

/// The location for leases at a folder's path, or at a URL (by the feature `object-store`).
///
/// # Errors
/// As [`open_storage`](crate::open_storage).
pub fn lease_location(location: &str) -> Result<Box<dyn LeaseLocation>> {
    if !location.contains("://") {
        return Ok(Box::new(Folder { given: location.into(), folder: Path::new(location).join(FOLDER) }));
    }
    #[cfg(feature = "object-store")]
    return Ok(Box::new(super::object::ObjectLeases::open(location)?));
    #[cfg(not(feature = "object-store"))]
    Err(Error::MissingFeature { url: location.into(), feature: "object-store" })
}

/// The folder of leases in a folder.
const FOLDER: &str = ".brigade.lease";

/// A folder of a file system. It needs no locks, but that a file is created only once.
struct Folder {
    given: String,
    folder: PathBuf,
}

impl Folder {
    /// What is renamed to the file of this name when it is whole. No [`AtomicFile`](brigade_files::AtomicFile): that one locks, and leases are
    /// for file systems where locks do not work. Only the holder writes its number's file, and by a fixed name the next holder finds what a
    /// killed one left.
    fn partial(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.partial"))
    }
}

impl LeaseLocation for Folder {
    fn text(&self) -> String {
        self.given.clone()
    }

    fn names(&self) -> Result<Vec<String>> {
        let failed = |error| Error::io("list", &self.folder)(error);
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str, content: &[u8]) -> Result<bool> {
        fs::create_dir_all(&self.folder).map_err(Error::io("create", &self.folder))?;
        let path = self.folder.join(name);
        match File::options().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            file => {
                let written =
                    file.and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()));
                written.map_err(Error::io("write", &path)).map(|()| true)
            }
        }
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let (path, partial) = (self.folder.join(name), self.partial(name));
        let written = fs::write(&partial, content).and_then(|()| fs::rename(&partial, &path));
        written.map_err(Error::io("write", &path))
    }

    fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Duration)>> {
        let path = self.folder.join(name);
        let read = || Ok((fs::read(&path)?, fs::metadata(&path)?.modified()?));
        match read() {
            Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => Ok(None),
            read => {
                let (content, modified) = read.map_err(Error::io("read", &path))?;
                Ok(Some((content, modified.duration_since(UNIX_EPOCH).unwrap_or_default())))
            }
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        // A writer that was killed may have left the second.
        [self.folder.join(name), self.partial(name)].iter().try_for_each(|path| match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
            _ => Ok(()),
        })
    }
}

/// The time since 1970 by the clock of the location: that of a file which is written now.
pub(super) fn now(location: &dyn LeaseLocation) -> Result<Duration> {
    let name = format!("time-{}", random_name()?);
    location.create(&name, name.as_bytes())?;
    let read = location.read(&name);
    location.remove(&name)?;
    match read? {
        Some((_, now)) => Ok(now),
        None => Err(Error::MissingFile { file: format!("{}/{name}", location.text()) }),
    }
}

/// A name that nobody else has.
pub(super) fn random_name() -> Result<String> {
    let number = getrandom::u64().map_err(|error| Error::Io {
        operation: "draw",
        path: "a random name".into(),
        source: error.into(),
    })?;
    Ok(format!("{number:016x}"))
}

/// The number of a lease, by its file's name.
pub(super) fn number_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}
