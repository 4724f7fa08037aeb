//! File descriptors that the launcher left open for this process, and whose numbers environment variables name.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes over the descriptor with this number, if `check` accepts it as the one that the launcher left. What is checked is a
/// copy, since the number may belong to no open descriptor, or to one that another thread may close. It is not inherited further.
///
/// # Safety
/// Nothing else in this process owns a descriptor that `check` accepts.
pub(crate) unsafe fn take(
    number: RawFd,
    check: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only; it fails if the first one belongs to no open descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nothing else has it.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    check(&copy)?;
    // SAFETY: it is open, since `check` accepted it, and the caller says that nothing else owns it.
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
    fn only_the_accepted_descriptor_is_taken() {
        // Far above the numbers in use while tests run side by side.
        let closed = 100_000;
        // SAFETY: nothing is accepted.
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
        // Reading ends, so no copy is left open.
        std::fs::File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "still open, then taken");
    }
}
