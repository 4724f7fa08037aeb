//! Heartbeats of a rank.
//!
//! The launcher hands each rank a pipe. The training loop writes into it what it is about to do, so the launcher knows where
//! the rank is, and that a rank without heartbeats is stuck: waiting for a disk that does not answer, spinning in a loop,
//! stopped. Deadlines of collectives cannot tell; they only name who did not arrive.

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

use super::inherited_fd;

/// The pipe for heartbeats, as `descriptor:inode`; set by the launcher.
pub const HEARTBEAT_VARIABLE: &str = "BRIGADE_HEARTBEAT_FD";

/// Longer messages are cut, in bytes. With time and newline a heartbeat stays below what a pipe takes whole.
pub const MAX_MESSAGE_BYTES: usize = 200;

/// How often the same message is sent again.
const REPEAT: Duration = Duration::from_millis(100);

/// Tells the launcher where this rank is. Costs about a microsecond, never waits and never fails.
#[derive(Debug, Default)]
pub struct HeartbeatSender(Option<Mutex<Connection>>);

#[derive(Debug)]
struct Connection {
    pipe: File,
    last_message: String,
    sent: Instant,
}

impl HeartbeatSender {
    /// The sender for the pipe that the launcher gave this process. Heartbeats go nowhere in a process without one: a rank that
    /// something else started, a process that a rank started (the pipe is not inherited further), and at the
    /// second call.
    ///
    /// The descriptor is taken only if it is the very pipe that the variable names, by its inode.
    pub fn from_env() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let Ok(value) = std::env::var(HEARTBEAT_VARIABLE) else { return Self::default() };
        let Some((fd, inode)) = parse(&value) else { return Self::default() };
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Self::default();
        }
        // SAFETY: the launcher opened the pipe with this inode for this process, and TAKEN lets nobody take it a second time.
        match unsafe { inherited_fd::take(fd, |pipe| prepare(pipe, inode)) } {
            Ok(pipe) => Self::new(File::from(pipe)),
            Err(_) => Self::default(),
        }
    }

    fn new(pipe: File) -> Self {
        Self(Some(Mutex::new(Connection { pipe, last_message: String::new(), sent: Instant::now() })))
    }

    /// Says that the rank is alive and what it is about to do, such as `step 12: forward`. The launcher shows
    /// the last message of a rank that stops sending, so send it *before* what may take long. A newline counts as a
    /// blank; what exceeds [`MAX_MESSAGE_BYTES`] is cut. The same message is written every 100 ms at most.
    pub fn send(&self, message: &str) {
        let Some(connection) = &self.0 else { return };
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        let message = &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)];
        if connection.last_message == message && connection.sent.elapsed() < REPEAT {
            return;
        }
        let line = format!("{} {}\n", now_nanos(), message.replace('\n', " "));
        // A full pipe means that the launcher does not run; a broken one that it is gone.
        if connection.pipe.write(line.as_bytes()).is_ok() {
            connection.sent = Instant::now();
            message.clone_into(&mut connection.last_message);
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

    fn sender() -> (HeartbeatSender, File) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let inode = fstat(&writer).unwrap().st_ino;
        assert!(prepare(&writer, inode + 1).is_err() && prepare(&reader, inode).is_err());
        prepare(&writer, inode).unwrap();
        (HeartbeatSender::new(writer.into()), reader.into())
    }

    #[test]
    fn sends_each_new_message_and_repeats_the_same_one_rarely() {
        let (sender, mut pipe) = sender();
        for step in 0..50 {
            (0..20).for_each(|_| sender.send(&format!("step {step}")));
        }
        sender.send(&"ü\n".repeat(300));
        drop(sender);
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        let messages: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        assert!((51..=70).contains(&messages.len()), "{}", messages.len());
        assert!(messages.contains(&"step 49") && messages.last().unwrap().starts_with("ü ü"));
        assert!(text.lines().all(|line| line.len() <= MAX_MESSAGE_BYTES + 21));
    }

    #[test]
    fn never_waits_for_a_reader_and_goes_on_without_one() {
        let (sender, pipe) = sender();
        (0..10_000).for_each(|step| sender.send(&format!("step {step} of a launcher that does not read")));
        drop(pipe);
        sender.send("on");
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
