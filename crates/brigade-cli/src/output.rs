//! Text on standard output.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints a text. Whoever reads it may leave early.
pub fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
