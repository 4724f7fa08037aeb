//! A run that has lost a lease: it stops, and tells so.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brigade_launch::{exit, stop_launches};
use brigade_report::{RunEvent, add_to_history, now};

use super::ending::notify::{Ending, notify, notify_at_once};
use crate::error::print_stderr;

/// How long the launcher may take to end its ranks and to tell of it; longer than a command of `output.notify` may.
const END: Duration = Duration::from_secs(60);

/// Whether a run has lost a lease, and who tells of it.
pub(crate) struct LostLease {
    dir: PathBuf,
    /// When the run began.
    began: f64,
    /// Whether the lock of its folder says that nobody else is there.
    is_locked: bool,
    /// The command of `output.notify`; none in a rank whose launcher runs it.
    notify: Vec<String>,
    /// Whether the launcher has ranks, which it ends first.
    has_ranks: AtomicBool,
    reason: OnceLock<String>,
}

impl LostLease {
    pub(crate) fn new(dir: &Path, is_locked: bool, notify: &[String]) -> Self {
        let (has_ranks, reason) = (AtomicBool::new(false), OnceLock::new());
        Self { dir: dir.to_owned(), began: now(), is_locked, notify: notify.to_owned(), has_ranks, reason }
    }

    /// From now on, or no longer, there is a launcher that can end its ranks.
    pub(crate) fn set_has_ranks(&self, has_ranks: bool) {
        self.has_ranks.store(has_ranks, Ordering::SeqCst);
    }

    /// Why the run has to end, if it has lost a lease.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Ends the run, which learns of the loss by this message.
    pub(crate) fn end_run(&self, message: &str) {
        print_stderr(format_args!("brigade: {message}; this run stops and writes nothing more"));
        if self.reason.set(message.to_owned()).is_err() {
            return;
        }
        if self.has_ranks.load(Ordering::SeqCst) {
            stop_launches();
            let late = || {
                std::thread::sleep(END);
                std::process::exit(i32::from(exit::FAILED));
            };
            if std::thread::Builder::new().name("end".into()).spawn(late).is_ok() {
                return;
            }
        } else {
            let ending = self.recorded(message);
            notify_at_once(&self.notify, &self.dir, &ending);
        }
        // Ranks end with their launcher.
        std::process::exit(i32::from(exit::FAILED));
    }

    /// Tells of the end: in the run's folder, if that is still its own, and to the command of `output.notify`.
    pub(crate) fn tell(&self, reason: &str) {
        notify(&self.notify, &self.dir, &self.recorded(reason));
    }

    fn recorded(&self, reason: &str) -> Ending {
        let ending = Ending::failed(reason, exit::FAILED);
        if self.is_locked {
            // A run that cannot write its history ends as it would have.
            drop(add_to_history(&self.dir, self.began, RunEvent::Failed { reason: ending.reason.clone() }));
        }
        ending
    }
}
