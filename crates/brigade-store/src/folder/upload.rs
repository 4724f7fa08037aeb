//! Writing objects.

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, WriteMultipart};

use crate::{Client, Result};

/// Smallest part of an upload, in bytes.
const PART: u64 = 8 << 20;

/// How many parts of an upload are sent at once.
const PARALLEL: usize = 8;

/// Object stores allow 10,000 parts; this leaves some for rounding.
const PARTS: u64 = 9_000;

/// An object that is being written. It appears as a whole when it is finished; if it is dropped before, nothing appears.
pub struct Upload {
    client: Client,
    path: Path,
    /// What was there when it was begun: its tag, or when it was written.
    before: Option<String>,
    /// Bytes so far.
    written: u64,
    state: Option<State>,
}

enum State {
    /// A small object, which is sent at once.
    Whole(Vec<u8>),
    /// A large one, in parts, several of which are sent at once.
    Parts(WriteMultipart),
}

impl Upload {
    /// Begins an object of about `bytes` bytes; an object at `path` is replaced at the end.
    ///
    /// # Errors
    /// [`Error::Failed`](crate::Error::Failed) with the URL, as all of its methods.
    pub fn begin(client: &Client, path: &Path, bytes: u64) -> Result<Self> {
        let part = usize::try_from(PART.max(bytes.div_ceil(PARTS))).unwrap_or(usize::MAX);
        let mut before = None;
        let state = if bytes <= part as u64 {
            State::Whole(Vec::new())
        } else {
            before = client.find("find", path, || client.store().head(path))?.as_ref().map(identity);
            let begun = client.retry("write", path, || client.store().put_multipart(path))?;
            State::Parts(WriteMultipart::new_with_chunk_size(begun, part))
        };
        Ok(Self { client: client.clone(), path: path.clone(), before, written: 0, state: Some(state) })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        match &mut self.state {
            Some(State::Whole(content)) => content.extend_from_slice(bytes),
            Some(State::Parts(upload)) => self.client.wait("write", &self.path, async {
                upload.wait_for_capacity(PARALLEL).await?;
                upload.write(bytes);
                Ok(())
            })?,
            None => {}
        }
        Ok(())
    }

    /// Makes the object appear.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn finish(mut self) -> Result<()> {
        let Self { client, path, before, written, state } = &mut self;
        match state.take() {
            Some(State::Whole(content)) => {
                client.wait("write", path, client.store().put(path, content.into())).map(|_| ())
            }
            Some(State::Parts(upload)) => match client.wait("finish", path, upload.finish()) {
                Ok(_) => Ok(()),
                // An upload whose end was answered on a connection that was cut is unknown when it is ended once more.
                Err(error) => match client.find("find", path, || client.store().head(path)) {
                    Ok(Some(found)) if found.size == *written && Some(identity(&found)) != *before => Ok(()),
                    _ => Err(error),
                },
            },
            None => Ok(()),
        }
    }
}

/// What changes with each writing of an object.
fn identity(found: &ObjectMeta) -> String {
    format!("{:?} {}", found.e_tag, found.last_modified)
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(State::Parts(upload)) = self.state.take() {
            // A store removes unfinished parts by itself eventually.
            let _ = self.client.wait("give up", &self.path, upload.abort());
        }
    }
}
