//! Errors in words, and saying them.

use std::fmt::Display;
use std::io::Write;

/// An error and its causes in one line. A cause is left out where the message before it quotes it.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text.extend([colon, &cause]);
        }
    }
    text
}

/// Writes a line to standard error. Where nobody can read it (a full disk, a closed pipe) the program
/// goes on to its own end.
pub fn tell(text: impl Display) {
    drop(writeln!(std::io::stderr(), "{text}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[derive(Debug, thiserror::Error)]
    #[error("a.txt: {source}")]
    struct Quoting {
        source: std::io::Error,
    }

    #[test]
    fn each_cause_is_told_once() {
        let full = || std::io::Error::other("disk full");
        let error = anyhow::Error::from(Quoting { source: full() }).context("saving");
        assert_eq!(explain(&error), "saving: a.txt: disk full");
        let error = Err::<(), _>(full()).context("saving").unwrap_err();
        assert_eq!(explain(&error), "saving: disk full");
    }
}
