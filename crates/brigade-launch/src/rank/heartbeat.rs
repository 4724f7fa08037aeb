//! A rank's signs of life.
//!
//! The launcher hands each rank a pipe. What the training loop says into it has no other effect than that the
//! launcher knows where the rank is, and that a rank which falls silent is stuck: waiting for a disk that
//! does not answer, spinning in a loop, stopped. Deadlines of collectives cannot see that, they only name
//! who did not come.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, RawFd},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat},
    time::{ClockId, clock_gettime},
};

use crate::inherited_fd;

/// The heart's pipe, as `descriptor:inode`; set by the launcher.
pub const HEARTBEAT_VARIABLE: &str = "BRIGADE_HEARTBEAT_FD";

/// Longer words are cut, in bytes. With time and newline a beat stays below what a pipe takes whole.
pub const MAX_MESSAGE_BYTES: usize = 200;

/// How often the same word is said again.
const REPEAT: Duration = Duration::from_millis(100);

/// Tells the launcher where this rank is. Costs about a microsecond, never waits and never fails.
#[derive(Debug, Default)]
pub struct HeartbeatSender(Option<Mutex<SenderState>>);

#[derive(Debug)]
struct SenderState {
    pipe: File,
    word: String,
    said: Instant,
}

impl HeartbeatSender {
    /// The heart that the launcher gave this process. It beats silently in a process without one: a rank that
    /// something else started, a process that a rank started (the pipe is not inherited further), and at the
    /// second call.
    ///
    /// The descriptor is taken only if it is the very pipe that the variable names, by its inode.
    pub fn from_environment() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let Ok(value) = std::env::var(HEARTBEAT_VARIABLE) else { return Self::default() };
        let Some((fd, inode)) = parse(&value) else { return Self::default() };
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Self::default();
        }
        // SAFETY: the pipe with this inode is the launcher's for this process, and TAKEN lets nobody take it a second time.
        match unsafe { inherited_fd::take(fd, |pipe| prepare(pipe, inode)) } {
            Ok(pipe) => Self::new(File::from(pipe)),
            Err(_) => Self::default(),
        }
    }

    fn new(pipe: File) -> Self {
        Self(Some(Mutex::new(SenderState { pipe, word: String::new(), said: Instant::now() })))
    }

    /// Says that the rank is alive and what it is about to do, such as `step 12: forward`. The launcher shows
    /// the last word of a rank that falls silent, so say it *before* what may take long. A newline counts as a
    /// blank; what exceeds [`MAX_MESSAGE_BYTES`] bytes is cut. The same word is written every 100 ms at most.
    pub fn send(&self, word: &str) {
        let Some(beating) = &self.0 else { return };
        let mut beating = beating.lock().unwrap_or_else(PoisonError::into_inner);
        let word = &word[..word.floor_char_boundary(MAX_MESSAGE_BYTES)];
        if beating.word == word && beating.said.elapsed() < REPEAT {
            return;
        }
        let line = format!("{} {}\n", now_nanos(), word.replace('\n', " "));
        // A full pipe means that the launcher does not run; a broken one that it is gone.
        if beating.pipe.write(line.as_bytes()).is_ok() {
            beating.said = Instant::now();
            word.clone_into(&mut beating.word);
        }
    }
}

/// Nanoseconds of the monotonic clock, which all processes of a machine share.
pub(crate) fn now_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

pub(crate) fn parse(value: &str) -> Option<(RawFd, u64)> {
    let (fd, inode) = value.split_once(':')?;
    let fd = fd.parse().ok().filter(|fd: &RawFd| *fd > 2)?;
    Some((fd, inode.parse().ok()?))
}

/// Checks that this is the writing end of the pipe with this inode, and keeps it from waiting.
fn prepare(fd: impl AsFd, inode: u64) -> io::Result<()> {
    let stat = fstat(&fd)?;
    let flags = fcntl_getfl(&fd)?;
    let writable = flags & OFlags::ACCMODE == OFlags::WRONLY;
    let is_pipe = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
    if !(is_pipe && writable && stat.st_ino == inode) {
        return Err(io::Error::other("it is not the launcher's pipe"));
    }
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn heart() -> (HeartbeatSender, File) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let inode = fstat(&writer).unwrap().st_ino;
        assert!(prepare(&writer, inode + 1).is_err() && prepare(&reader, inode).is_err());
        prepare(&writer, inode).unwrap();
        (HeartbeatSender::new(writer.into()), reader.into())
    }

    #[test]
    fn says_each_new_word_and_repeats_the_same_one_rarely() {
        let (heart, mut pipe) = heart();
        for step in 0..50 {
            (0..20).for_each(|_| heart.send(&format!("step {step}")));
        }
        heart.send(&"ü\n".repeat(300));
        drop(heart);
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        let words: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert!((51..=70).contains(&words.len()), "{}", words.len());
        assert!(words.contains(&"step 49") && words.last().unwrap().starts_with("ü ü"));
        assert!(text.lines().all(|line| line.len() <= MAX_MESSAGE_BYTES + 21));
    }

    #[test]
    fn never_waits_for_a_reader_and_outlives_it() {
        let (heart, pipe) = heart();
        (0..10_000).for_each(|step| heart.send(&format!("step {step} of a launcher that does not read")));
        drop(pipe);
        heart.send("on");
        HeartbeatSender::default().send("nobody listens");
    }

    #[test]
    fn refuses_other_values() {
        for value in ["", "7", "x:1", "1:5", "7:", "-1:3", "7:x"] {
            assert_eq!(parse(value), None, "{value}");
        }
        assert_eq!(parse("7:12"), Some((7, 12)));
    }
}
