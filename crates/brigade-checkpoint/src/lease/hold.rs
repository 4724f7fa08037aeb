//! Holding a lease: it is renewed on a thread of its own.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::location::LeaseLocation;
use super::{LeaseRecord, encoded, name, newest_lease};
use crate::error::{Error, Result};

/// A location that is held, until this is dropped or released.
pub struct Lease {
    held: Arc<Held>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Held {
    location: Box<dyn LeaseLocation>,
    number: u64,
    record: Mutex<LeaseRecord>,
    watch: Mutex<Watch>,
}

/// What is done at each renewal.
struct Watch {
    status: Box<dyn FnMut() -> serde_json::Value + Send>,
    lost: Box<dyn FnMut(&str) + Send>,
    warn: Box<dyn FnMut(&str) + Send>,
}

impl Lease {
    pub(super) fn start(
        location: Box<dyn LeaseLocation>,
        number: u64,
        record: LeaseRecord,
        every: Duration,
    ) -> Result<Self> {
        let watch = Watch {
            status: Box::new(|| serde_json::Value::Null),
            lost: Box::new(|_| {}),
            warn: Box::new(|_| {}),
        };
        let held = Arc::new(Held { location, number, record: Mutex::new(record), watch: Mutex::new(watch) });
        let (end, ended) = channel();
        let renewing = Arc::clone(&held);
        let renew = move || {
            let mut warned = false;
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                match renewing.renew() {
                    Ok(true) => warned = false,
                    Ok(false) => return,
                    // It may come back; whoever takes the location meanwhile is seen then.
                    Err(error) if !std::mem::replace(&mut warned, true) => renewing.warn(&error.to_string()),
                    Err(_) => {}
                }
            }
        };
        let thread = thread::Builder::new().name("lease".into()).spawn(renew).map_err(|source| {
            Error::Io { operation: "start", path: "the thread that renews the lease".into(), source }
        })?;
        Ok(Self { held, end: Some(end), thread: Some(thread) })
    }

    /// What happens at renewals from now on: what the holder says of itself, what it does when another has taken the location, and when the
    /// lease cannot be renewed.
    pub fn watch(
        &self,
        status: impl FnMut() -> serde_json::Value + Send + 'static,
        lost: impl FnMut(&str) + Send + 'static,
        warn: impl FnMut(&str) + Send + 'static,
    ) {
        let watch = Watch { status: Box::new(status), lost: Box::new(lost), warn: Box::new(warn) };
        *self.held.watch.lock().unwrap_or_else(PoisonError::into_inner) = watch;
    }

    /// The location.
    pub fn location(&self) -> String {
        self.held.location.text()
    }

    /// Gives the location back, and says how the run ended.
    ///
    /// # Errors
    /// Those of the location; then the lease ends by silence.
    pub fn release(mut self, ended: &str) -> Result<()> {
        self.stop(ended)
    }

    fn stop(&mut self, ended: &str) -> Result<()> {
        drop(self.end.take());
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // A panic there has left nothing to be cleaned.
        let _ = thread.join();
        self.held.end(ended)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // One that is not given back ends by silence.
        let _ = self.stop("ended");
    }
}

impl Held {
    /// Writes the lease again; false if another has taken the location.
    fn renew(&self) -> Result<bool> {
        let watch = || self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if newest_lease(&*self.location)? > Some(self.number) || self.is_replaced()? {
            let who = super::look_at_lease(&*self.location).ok().flatten();
            let who =
                who.map_or_else(|| "an unknown process".into(), |found| found.record.holder.to_string());
            let location = self.location.text();
            (watch().lost)(&format!(
                "{location} was taken over by {who}, because this run gave no sign of life for too long"
            ));
            return Ok(false);
        }
        let status = (watch().status)();
        let content = {
            let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            record.renewed += 1;
            record.status = status;
            encoded(&record)?
        };
        self.location.write(&name(self.number), &content)?;
        Ok(true)
    }

    /// Whether another's record is where this one's was written.
    fn is_replaced(&self) -> Result<bool> {
        let Some((content, _)) = self.location.read(&name(self.number))? else { return Ok(false) };
        let Ok(there) = serde_json::from_slice::<LeaseRecord>(&content) else { return Ok(false) };
        Ok(there.id != self.record.lock().unwrap_or_else(PoisonError::into_inner).id)
    }

    fn warn(&self, error: &str) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        (watch.warn)(&format!("the lease of {} cannot be renewed: {error}", self.location.text()));
    }

    fn end(&self, ended: &str) -> Result<()> {
        if newest_lease(&*self.location)? > Some(self.number) || self.is_replaced()? {
            return Ok(());
        }
        let status = (self.watch.lock().unwrap_or_else(PoisonError::into_inner).status)();
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.ended = Some(ended.into());
        if !status.is_null() {
            record.status = status;
        }
        self.location.write(&name(self.number), &encoded(&record)?)
    }
}
