//! Whether a rank lives: what its heart says, and whether somebody has stopped it.

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

use super::failure::StoppedRank;
use crate::heartbeat::now_nanos;

/// How often hearts are listened to.
pub const TICK: Duration = Duration::from_millis(200);

/// The most silence that one look can count. A launcher that was stopped itself knows nothing of the time
/// between.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// How long a rank must have been stopped to be named: debuggers and job control do it for a moment.
const NOTICED: Duration = Duration::from_secs(2);

/// Memory for a beat that has not come whole.
const MAX_PART: usize = 4096;

/// The launcher's side of one rank's heart.
pub struct HeartbeatMonitor {
    pipe: File,
    part: Vec<u8>,
    /// The last word, once there was one.
    word: Option<String>,
    /// When it was said, by the monotonic clock.
    said: u64,
    silence: Duration,
    stopped: Option<(i32, Instant)>,
}

/// The rank's end of the pipe, to be inherited.
pub struct HeartbeatPipe(OwnedFd);

impl HeartbeatPipe {
    /// The value of [`HEARTBEAT_VARIABLE`](crate::heartbeat::HEARTBEAT_VARIABLE).
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
        let (part, silence) = (vec![], Duration::ZERO);
        let pulse = Self { pipe: reader.into(), part, word: None, said: 0, silence, stopped: None };
        Ok((pulse, HeartbeatPipe(writer)))
    }

    /// Takes in what the heart has said since the last look, which was `elapsed` ago, and whether the process is
    /// stopped now.
    pub fn look(&mut self, pid: Option<Pid>, elapsed: Duration) {
        self.stopped = match (stopping_signal(pid), self.stopped) {
            (None, _) => None,
            (Some(signal), Some((before, since))) if before == signal => Some((signal, since)),
            (Some(signal), _) => Some((signal, Instant::now())),
        };
        match self.listen() {
            true => self.silence = Duration::ZERO,
            false => self.silence += elapsed.min(LONGEST_LOOK),
        }
    }

    /// Reads all beats that are there; true if there was one.
    fn listen(&mut self) -> bool {
        let mut beaten = false;
        let mut bytes = [0; 4096];
        // What is not there yet, or never comes any more, is an error or nothing.
        while let Ok(n @ 1..) = self.pipe.read(&mut bytes) {
            self.part.extend_from_slice(&bytes[..n]);
            if let Some(end) = self.part.iter().rposition(|byte| *byte == b'\n') {
                let start = self.part[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                let line = String::from_utf8_lossy(&self.part[start..end]).into_owned();
                self.part.drain(..=end);
                if let Some((said, word)) = line.split_once(' ') {
                    self.said = said.parse().unwrap_or_else(|_| now_nanos());
                    self.word = Some(word.to_owned());
                    beaten = true;
                }
            }
            if self.part.len() > MAX_PART {
                self.part.clear();
            }
        }
        beaten
    }

    /// The last word, if the heart has ever beaten.
    pub fn last_heartbeat(&self) -> Option<&str> {
        self.word.as_deref()
    }

    /// How long ago the last word was said, if the heart has been silent for `timeout`.
    pub fn silent_for(&self, timeout: Duration) -> Option<Duration> {
        let silent = self.word.is_some() && self.silence >= timeout;
        silent.then(|| Duration::from_nanos(now_nanos().saturating_sub(self.said)))
    }

    /// Whether somebody has stopped the rank.
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
        (duration >= NOTICED).then_some(StoppedRank { rank, signal, duration })
    }
}

/// The signal that has stopped the process, if it is stopped now. Nothing is taken from who else waits for it.
fn stopping_signal(pid: Option<Pid>) -> Option<i32> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid?), options).ok().flatten()?.stopping_signal()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn counts_silence_from_the_first_beat_on_and_keeps_the_last_word() {
        let (mut pulse, pipe) = HeartbeatMonitor::new().unwrap();
        let mut pipe = File::from(pipe.0);
        let second = Duration::from_secs(1);
        (0..5).for_each(|_| pulse.look(None, second));
        assert_eq!((pulse.silent_for(second), pulse.last_heartbeat()), (None, None));
        pipe.write_all(b"7 load\n8 step 1\n9 st").unwrap();
        pulse.look(None, second);
        assert_eq!((pulse.last_heartbeat(), pulse.silence, pulse.said), (Some("step 1"), Duration::ZERO, 8));
        pipe.write_all(b"ep 2\n").unwrap();
        pulse.look(None, second);
        assert_eq!(pulse.last_heartbeat(), Some("step 2"));
        (0..2).for_each(|_| pulse.look(None, Duration::from_secs(1000)));
        assert!(pulse.silent_for(3 * second).is_none(), "a launcher that did not look counts one second");
        assert!(pulse.silent_for(2 * second).unwrap() > second);
        drop(pipe);
        pulse.look(None, second);
        assert!(pulse.silent_for(3 * second).is_some());
    }

    #[test]
    fn takes_no_memory_for_what_is_no_beat() {
        let (mut pulse, pipe) = HeartbeatMonitor::new().unwrap();
        File::from(pipe.0).write_all(&[b'x'; 60_000]).unwrap();
        pulse.look(None, TICK);
        assert!(pulse.part.len() <= MAX_PART && pulse.last_heartbeat().is_none());
    }
}
