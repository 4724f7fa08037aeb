//! Descriptors that the launcher left open for this process, whose numbers variables of the environment name.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The descriptor with a number, if `is_meant` says that it is the one that the launcher left: asked of a copy, since the
/// number may stand for nothing here, or for something that is closed at any moment. It is not inherited further.
///
/// # Safety
/// Nothing else in this process owns a descriptor of which `is_meant` says so.
pub(crate) unsafe fn take(
    number: RawFd,
    is_meant: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only; it fails where the first one is of nothing that is open.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and known to nobody else.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    is_meant(&copy)?;
    // SAFETY: it is open, since it is the one that was meant, and by the caller's word nobody else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsRawFd, IntoRawFd};

    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn what_was_meant_changes_hands_and_nothing_else_is_touched() {
        // Far above what is given out while tests run side by side.
        let closed = 100_000;
        // SAFETY: nothing is said to be meant.
        let error = unsafe { take(closed, |_| panic!("there is nothing to ask about")) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));

        let (reader, writer) = pipe().unwrap();
        // SAFETY: as above.
        let refused = unsafe { take(writer.as_raw_fd(), |_| Err(io::Error::other("another one"))) };
        assert_eq!(refused.unwrap_err().to_string(), "another one");
        rustix::io::write(&writer, b"still open").unwrap();

        // SAFETY: nothing owns it any more.
        let taken = unsafe { take(writer.into_raw_fd(), |_| Ok(())) }.unwrap();
        rustix::io::write(&taken, b", then taken").unwrap();
        drop(taken);
        let mut text = String::new();
        // It ends, so no copy is left behind.
        std::fs::File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "still open, then taken");
    }
}
