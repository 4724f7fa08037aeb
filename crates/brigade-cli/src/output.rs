//! Text on standard output.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints a text. It is not an error if the reader closes the pipe early.
pub fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
