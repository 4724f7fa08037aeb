//! Ranges of objects, asked for until all of their bytes are there.

use std::ops::Range;
use std::time::Instant;

use futures_util::StreamExt;
use object_store::{GetOptions, GetRange};
use tokio::time::{sleep, timeout};

use crate::reason::{may_pass, reason};
use crate::timeouts::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::{Error, Object, Result};

/// How a request ended early.
enum Ended {
    /// It makes sense to ask for the rest.
    Cut(String),
    /// It does not.
    Failed(Error),
}

impl Object {
    /// The bytes of a range within the object.
    pub(crate) async fn fetch(self, range: Range<u64>) -> Result<Vec<u8>> {
        let wanted = (range.end - range.start) as usize;
        let mut bytes = Vec::with_capacity(wanted);
        let (mut since, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let before = bytes.len();
            let ended = self.request(range.start + before as u64..range.end, &mut bytes).await;
            match ended {
                Ok(()) if bytes.len() == wanted => return Ok(bytes),
                Err(Ended::Failed(error)) => return Err(error),
                _ => {}
            }
            if bytes.len() > before {
                (since, pause) = (Instant::now(), FIRST_PAUSE);
            }
            let deadline = self.client.deadline();
            if since.elapsed() >= deadline {
                let reason = match ended {
                    Err(Ended::Cut(reason)) => reason,
                    _ => "the connection was cut".into(),
                };
                let seconds = deadline.as_secs_f64().round();
                return Err(self.unanswered(format!("no byte arrived for {seconds} s: {reason}")));
            }
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Adds the bytes of a range, or as many as come in one answer.
    async fn request(&self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), Ended> {
        let most = (range.end - range.start) as usize + bytes.len();
        // The comparison is strong, so a weak one never matches. A time is no tag, and files have tags without the quotes.
        let tag = Some(self.version()).filter(|version| version.starts_with('"') && !self.client.is_local());
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: tag.map(str::to_owned),
            ..GetOptions::default()
        };
        let deadline = self.client.deadline();
        let asked = self.client.store().get_opts(&self.path, options);
        let answer = match timeout(2 * deadline, asked).await {
            Ok(answer) => answer.map_err(|error| Ended::Failed(self.refused(&error)))?,
            Err(_) => return Err(Ended::Cut("the store did not answer".into())),
        };
        if !self.is(&answer.meta) {
            return Err(Ended::Failed(self.changed()));
        }
        let mut stream = answer.into_stream();
        loop {
            match timeout(deadline, stream.next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(Ok(chunk))) if bytes.len() + chunk.len() <= most => bytes.extend_from_slice(&chunk),
                Ok(Some(Ok(_))) => {
                    return Err(Ended::Failed(self.failed("the store sent more than was requested".into())));
                }
                Ok(Some(Err(error))) => return Err(Ended::Cut(reason(&error))),
                Err(_) => return Err(Ended::Cut("the connection went silent".into())),
            }
        }
    }

    /// What a refusal means; the store has been asked again where that could help.
    fn refused(&self, error: &object_store::Error) -> Error {
        match error {
            object_store::Error::NotFound { .. } | object_store::Error::Precondition { .. } => self.changed(),
            object_store::Error::NotSupported { .. } => self.failed(
                "the server does not support range requests (RFC 9110, 14.2); download the file".into(),
            ),
            other if may_pass(other) => self.unanswered(reason(other)),
            other => self.failed(reason(other)),
        }
    }

    fn changed(&self) -> Error {
        Error::Changed { url: self.url().into() }
    }

    pub(crate) fn failed(&self, message: String) -> Error {
        Error::Failed { operation: "read", url: self.url().into(), message, may_pass: false }
    }

    /// The store did not answer, or was busy.
    pub(crate) fn unanswered(&self, message: String) -> Error {
        Error::Failed { operation: "read", url: self.url().into(), message, may_pass: true }
    }
}
