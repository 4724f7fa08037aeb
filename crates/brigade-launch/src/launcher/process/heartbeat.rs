//! Whether a rank is alive: its heartbeats, and whether a signal has stopped it.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    fs::{OFlags, fcntl_setfl, fstat},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, WaitId, WaitIdOptions, waitid},
};

use crate::{launcher::outcome::failure::StoppedRank, rank::heartbeat::now_nanos};

/// How often heartbeats are read.
pub const TICK: Duration = Duration::from_millis(200);

/// The most silence that one poll can add. A launcher that was stopped itself knows nothing about the time in
/// between.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a rank must have been stopped to be reported: debuggers and job control stop processes for a moment.
const MIN_REPORTED_STOP: Duration = Duration::from_secs(2);

/// Bytes of a heartbeat that has not arrived completely.
const MAX_PARTIAL: usize = 4096;

/// The launcher's end of one rank's pipe for heartbeats.
pub struct HeartbeatMonitor {
    pipe: File,
    partial: Vec<u8>,
    /// The last message, once there was one.
    message: Option<String>,
    /// When it was sent, in nanoseconds of the monotonic clock.
    sent: u64,
    silence: Duration,
    stopped: Option<(i32, Instant)>,
}

/// The rank's end of the pipe, to be inherited.
pub struct HeartbeatPipe(OwnedFd);

impl HeartbeatPipe {
    /// The value of [`HEARTBEAT_VARIABLE`](crate::rank::heartbeat::HEARTBEAT_VARIABLE).
    pub fn variable(&self) -> io::Result<String> {
        use std::os::fd::AsRawFd;
        Ok(format!("{}:{}", self.0.as_raw_fd(), fstat(&self.0)?.st_ino))
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl HeartbeatMonitor {
    pub fn new() -> io::Result<(Self, HeartbeatPipe)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&reader, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let (partial, silence) = (vec![], Duration::ZERO);
        let monitor = Self { pipe: reader.into(), partial, message: None, sent: 0, silence, stopped: None };
        Ok((monitor, HeartbeatPipe(writer)))
    }

    /// Reads the heartbeats since the last poll, which was `elapsed` ago, and whether the process is stopped now.
    pub fn poll(&mut self, pid: Option<Pid>, elapsed: Duration) {
        self.stopped = match (stopping_signal(pid), self.stopped) {
            (None, _) => None,
            (Some(signal), Some((before, since))) if before == signal => Some((signal, since)),
            (Some(signal), _) => Some((signal, Instant::now())),
        };
        match self.read_all() {
            true => self.silence = Duration::ZERO,
            false => self.silence += elapsed.min(MAX_POLL_INTERVAL),
        }
    }

    /// Reads all heartbeats that have arrived; true if there was one.
    fn read_all(&mut self) -> bool {
        let mut any = false;
        let mut bytes = [0; 4096];
        // Bytes that have not arrived yet, or never will, read as an error or as nothing.
        while let Ok(n @ 1..) = self.pipe.read(&mut bytes) {
            self.partial.extend_from_slice(&bytes[..n]);
            if let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') {
                let start =
                    self.partial[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let line = String::from_utf8_lossy(&self.partial[start..end]).into_owned();
                self.partial.drain(..=end);
                if let Some((sent, message)) = line.split_once(' ') {
                    self.sent = sent.parse().unwrap_or_else(|_| now_nanos());
                    self.message = Some(message.to_owned());
                    any = true;
                }
            }
            if self.partial.len() > MAX_PARTIAL {
                self.partial.clear();
            }
        }
        any
    }

    /// The message of the last heartbeat, if there was any.
    pub fn last_message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// How long ago the last heartbeat was sent, if there has been none for `timeout`.
    pub fn silent_for(&self, timeout: Duration) -> Option<Duration> {
        let silent = self.message.is_some() && self.silence >= timeout;
        silent.then(|| Duration::from_nanos(now_nanos().saturating_sub(self.sent)))
    }

    /// Whether a signal has stopped the rank.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Whether the rank has been stopped for `timeout`, as far as this launcher has seen it.
    pub fn is_stopped_for(&self, timeout: Duration) -> bool {
        self.silence >= timeout && self.stopped.is_some_and(|(_, since)| since.elapsed() >= timeout)
    }

    /// The signal that has stopped the rank, and for how long, if that is long enough to matter.
    pub fn stopped(&self, rank: usize) -> Option<StoppedRank> {
        let (signal, since) = self.stopped?;
        let duration = since.elapsed();
        (duration >= MIN_REPORTED_STOP).then_some(StoppedRank { rank, signal, duration })
    }
}

/// The signal that has stopped the process, if it is stopped now. Other waits for the process are not affected.
fn stopping_signal(pid: Option<Pid>) -> Option<i32> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid?), options).ok().flatten()?.stopping_signal()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn counts_silence_from_the_first_heartbeat_on_and_keeps_the_last_message() {
        let (mut monitor, pipe) = HeartbeatMonitor::new().unwrap();
        let mut pipe = File::from(pipe.0);
        let second = Duration::from_secs(1);
        (0..5).for_each(|_| monitor.poll(None, second));
        assert_eq!((monitor.silent_for(second), monitor.last_message()), (None, None));
        pipe.write_all(b"7 load\n8 step 1\n9 st").unwrap();
        monitor.poll(None, second);
        assert_eq!(
            (monitor.last_message(), monitor.silence, monitor.sent),
            (Some("step 1"), Duration::ZERO, 8)
        );
        pipe.write_all(b"ep 2\n").unwrap();
        monitor.poll(None, second);
        assert_eq!(monitor.last_message(), Some("step 2"));
        (0..2).for_each(|_| monitor.poll(None, Duration::from_secs(1000)));
        assert!(monitor.silent_for(3 * second).is_none(), "a launcher that did not look counts one second");
        assert!(monitor.silent_for(2 * second).unwrap() > second);
        drop(pipe);
        monitor.poll(None, second);
        assert!(monitor.silent_for(3 * second).is_some());
    }

    #[test]
    fn takes_no_memory_for_what_is_no_heartbeat() {
        let (mut monitor, pipe) = HeartbeatMonitor::new().unwrap();
        File::from(pipe.0).write_all(&[b'x'; 60_000]).unwrap();
        monitor.poll(None, TICK);
        assert!(monitor.partial.len() <= MAX_PARTIAL && monitor.last_message().is_none());
    }
}
