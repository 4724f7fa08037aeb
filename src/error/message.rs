//! Errors as text, and text on standard error.

use std::fmt::Display;

use brigade_comm::Error;
use brigade_report::print_log;

/// An error and its causes on one line. A cause that an earlier message already quotes is left out.
pub fn format_error(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text.extend([colon, &cause]);
        }
    }
    let mut of_ranks = error.chain().filter_map(|cause| cause.downcast_ref::<Error>());
    if of_ranks.any(|cause| matches!(cause, Error::Timeout { .. } | Error::HeldUp { .. })) {
        text += LONGER;
    }
    text
}

/// What to do where nothing hangs.
const LONGER: &str = "; if they only need longer, raise comm.train_timeout_seconds";

/// Prints a message on standard error, in the format of `--log-format`. If that fails (a full disk, a closed pipe), the program carries on.
pub fn print_stderr(text: impl Display) {
    print_log(&text.to_string());
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
    fn each_cause_is_printed_once() {
        let full = || std::io::Error::other("disk full");
        let error = anyhow::Error::from(Quoting { source: full() }).context("saving");
        assert_eq!(format_error(&error), "saving: a.txt: disk full");
        let error = Err::<(), _>(full()).context("saving").unwrap_err();
        assert_eq!(format_error(&error), "saving: disk full");
    }

    #[test]
    fn a_deadline_names_its_setting() {
        let held_up = Error::HeldUp { peer: 1, root: Vec::new(), reason: "rank 2 did not arrive".into() };
        let error = anyhow::Error::from(brigade_core::Error::Collective(held_up.into())).context("rank 0");
        let text = format_error(&error);
        assert!(
            text.ends_with(
                "rank 2 did not arrive; if they only need longer, raise comm.train_timeout_seconds"
            ),
            "{text}"
        );
        let lost = Error::PeerDied { peer: 1, reason: "gone".into() };
        assert!(!format_error(&lost.into()).contains("comm.train_timeout_seconds"));
    }
}
