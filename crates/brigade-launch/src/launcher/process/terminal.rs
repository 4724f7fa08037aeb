//! A terminal for rank 0.
//!
//! Where the launcher's own output is a terminal, rank 0 gets a pseudo-terminal, so that its progress bar
//! works although the launcher reads along for the log. The bytes go to the real terminal unchanged.

use std::{fs::File, io, os::fd::OwnedFd};

use rustix::{
    fs::{Mode, OFlags},
    io::{FdFlags, fcntl_setfd},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{
        LocalModes, OptionalActions, OutputModes, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
    },
};

use super::output::Stream;

/// The launcher's side of rank 0's pseudo-terminal.
pub struct Terminal {
    launcher_side: OwnedFd,
    /// Whether the launcher's standard output is a terminal.
    pub out: bool,
    /// Whether the launcher's standard error is a terminal.
    pub err: bool,
}

impl Terminal {
    /// A pseudo-terminal and the side of it that rank 0 gets, if the launcher's standard output or error is a
    /// terminal and the system has a pseudo-terminal to give.
    pub fn open() -> Option<(Self, OwnedFd)> {
        let (out, err) = (isatty(io::stdout()), isatty(io::stderr()));
        if !out && !err {
            return None;
        }
        let (launcher_side, rank_side) = pair().ok()?;
        let terminal = Self { launcher_side, out, err };
        terminal.copy_size();
        Some((terminal, rank_side))
    }

    /// The real terminal.
    pub fn stream(&self) -> Stream {
        if self.out { Stream::Out } else { Stream::Err }
    }

    /// What rank 0 writes. It ends when nobody has the rank's side open any more.
    pub fn reader(&self) -> io::Result<File> {
        self.launcher_side.try_clone().map(File::from)
    }

    /// Gives the pseudo-terminal the size of the real one.
    pub fn copy_size(&self) {
        let size = if self.out { tcgetwinsize(io::stdout()) } else { tcgetwinsize(io::stderr()) };
        if let Ok(size) = size {
            // Only the width of a progress bar depends on it.
            let _ = tcsetwinsize(&self.launcher_side, size);
        }
    }
}

/// The two sides of a pseudo-terminal that changes no byte on its way.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let launcher_side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    fcntl_setfd(&launcher_side, FdFlags::CLOEXEC)?;
    grantpt(&launcher_side)?;
    unlockpt(&launcher_side)?;
    let path = ptsname(&launcher_side, Vec::new())?;
    let rank_side = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let mut modes = tcgetattr(&rank_side)?;
    modes.output_modes.remove(OutputModes::OPOST);
    modes.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&rank_side, OptionalActions::Now, &modes)?;
    Ok((launcher_side, rank_side))
}
