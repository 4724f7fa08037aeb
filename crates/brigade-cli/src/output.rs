//! Text on standard output.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints a text. It is not an error if the reader closes the pipe early.
pub fn print(text: &str) -> anyhow::Result<()> {
    show(text).map(drop)
}

/// Prints a text at once; `false` if nobody reads any more.
pub fn show(text: &str) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write to standard output"),
    }
}
