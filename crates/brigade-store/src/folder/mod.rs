//! Objects as the files of a folder.

mod upload;

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::{Duration, SystemTime};

pub use upload::Upload;

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use crate::location::{Location, Scheme};
use crate::{Client, Error, Object, Result};

/// Files are sent in pieces of this many bytes.
const PIECE: usize = 1 << 20;

/// The objects below a location, by their names there: `logs/rank-0.log`. All waiting is done inside its methods.
#[derive(Debug, Clone)]
pub struct Folder {
    client: Client,
    prefix: Path,
}

/// A file of a [`Folder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderFile {
    /// Its name below the location.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// When it was written, by the store's clock.
    pub changed: SystemTime,
}

impl Folder {
    /// The folder at a URL; nothing need be there yet. What an operation cannot do at once it tries again until `deadline`.
    ///
    /// # Errors
    /// [`Error::Url`], also for one that can only be read; else as [`Client::open`].
    pub fn open(url: &str, deadline: Duration) -> Result<Self> {
        let location = Location::parse(url)?;
        if location.scheme() == Scheme::Http {
            return Err(Error::Url { url: url.into(), message: "files there can only be read".into() });
        }
        Ok(Self { client: Client::open(&location, deadline)?, prefix: location.path().clone() })
    }

    /// The URL of a file.
    pub fn url(&self, name: &str) -> String {
        self.client.url(&self.path(name))
    }

    /// The files in one of its folders, or in itself (`""`), without those in folders below that.
    ///
    /// # Errors
    /// [`Error::Failed`]; it is none if there is no such folder.
    pub fn files(&self, folder: &str) -> Result<Vec<FolderFile>> {
        let path = self.path(folder);
        let store = self.client.store();
        let listed = self.client.find("list", &path, || store.list_with_delimiter(Some(&path)))?;
        let described = |found: ObjectMeta| {
            let name = found.location.filename()?;
            let name = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            Some(FolderFile { name, size: found.size, changed: found.last_modified.into() })
        };
        let objects = listed.map(|listed| listed.objects).unwrap_or_default();
        Ok(objects.into_iter().filter_map(described).collect())
    }

    /// Writes the content of a file into `into`, one version of it; false if there is no such file.
    ///
    /// # Errors
    /// [`Error::Failed`] and [`Error::Changed`], also where `into` fails.
    pub fn download(&self, name: &str, into: &mut dyn Write) -> Result<bool> {
        let path = self.path(name);
        let Some(found) = self.client.find("find", &path, || self.client.store().head(&path))? else {
            return Ok(false);
        };
        let object = Object::new(&self.client, found)?;
        let copied = io::copy(&mut object.reader(0, object.size()), into);
        copied.map(|_| true).map_err(|error| match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => self.failed("write what was read from", name, &error),
        })
    }

    /// Writes the first `bytes` bytes of `from` as a file, which appears or changes as a whole.
    ///
    /// # Errors
    /// [`Error::Failed`], also where `from` cannot be read.
    pub fn upload(&self, name: &str, from: &File, bytes: u64) -> Result<()> {
        let mut upload = Upload::begin(&self.client, &self.path(name), bytes)?;
        let (mut from, mut piece) = (from.take(bytes), vec![0; PIECE.min(bytes as usize)]);
        loop {
            match from.read(&mut piece) {
                Ok(0) => return upload.finish(),
                Ok(read) => upload.write(&piece[..read])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed("read the file for", name, &error)),
            }
        }
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        self.client.find("remove", &path, || self.client.store().delete(&path)).map(drop)
    }

    fn path(&self, name: &str) -> Path {
        name.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed(&self, operation: &'static str, name: &str, error: &io::Error) -> Error {
        Error::Failed { operation, url: self.url(name), message: error.to_string(), may_pass: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn files_are_what_was_uploaded() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(&format!("file://{}/a%20b", place.path().display()), LONG).unwrap();
        assert_eq!((folder.files("").unwrap(), folder.files("logs").unwrap()), (vec![], vec![]));
        let local = place.path().join("local");
        std::fs::write(&local, "0123456789").unwrap();
        for (name, bytes) in [("metrics.jsonl", 10), ("logs/rank-0.log", 4), ("empty", 0)] {
            folder.upload(name, &File::open(&local).unwrap(), bytes).unwrap();
        }
        let names = |below| {
            let mut files: Vec<_> =
                folder.files(below).unwrap().into_iter().map(|file| (file.name, file.size)).collect();
            files.sort();
            files
        };
        assert_eq!(names(""), [("empty".to_owned(), 0), ("metrics.jsonl".to_owned(), 10)]);
        assert_eq!(names("logs"), [("logs/rank-0.log".to_owned(), 4)]);
        let read = |name| {
            let mut content = Vec::new();
            folder.download(name, &mut content).unwrap().then_some(content)
        };
        assert_eq!(read("logs/rank-0.log").unwrap(), b"0123");
        assert_eq!((read("empty"), read("other")), (Some(vec![]), None));
        // A file that has become shorter since it was measured is sent as it is.
        folder.upload("metrics.jsonl", &File::open(&local).unwrap(), 100).unwrap();
        assert_eq!(read("metrics.jsonl").unwrap(), b"0123456789");
        folder.remove("metrics.jsonl").unwrap();
        folder.remove("metrics.jsonl").unwrap();
        assert_eq!(names(""), [("empty".to_owned(), 0)]);
    }

    #[test]
    fn a_web_page_is_no_folder_to_write_to() {
        let error = Folder::open("https://host/a", LONG).unwrap_err().to_string();
        assert_eq!(error, "https://host/a: files there can only be read");
    }
}
