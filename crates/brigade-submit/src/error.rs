//! What can be wrong with a job.

use std::{io, path::PathBuf, process::ExitStatus};

/// A job that cannot be, or could not be submitted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option's value.
    #[error("{option} {given} is not possible: {allowed}")]
    Value {
        /// The option's full name.
        option: String,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// An option that is needed.
    #[error("{option} is needed: {why}")]
    Missing {
        /// The option's full name.
        option: String,
        /// What for.
        why: String,
    },
    /// An option that this system has no use for.
    #[error("{option} cannot be used with --to {system}: {instead}")]
    NotOfSystem {
        /// The option's full name.
        option: String,
        /// The system.
        system: String,
        /// What to do.
        instead: String,
    },
    /// A secret that everybody who sees the job would see. It is not shown.
    #[error("{place} contains a secret ({what}), and many can see command lines and manifests: {instead}")]
    Secret {
        /// Where it was given.
        place: String,
        /// What it looks like.
        what: String,
        /// What to do.
        instead: String,
    },
    /// A program of the system is not on this machine.
    #[error("{program} is not installed on this machine ({instead})")]
    NoProgram {
        /// Its name.
        program: String,
        /// What to do.
        instead: String,
    },
    /// A program of the system failed.
    #[error("{command} ended with {status}{}", said(stderr))]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed.
        stderr: String,
    },
    /// A part of a job was submitted, or is of another one.
    #[error(
        "{source}; only a part of {name} was submitted, and the cluster has {there}: delete it with {delete}"
    )]
    Half {
        /// The job.
        name: String,
        /// What there is.
        there: String,
        /// The command that deletes it.
        delete: String,
        /// What failed.
        source: Box<Error>,
    },
    /// A program of the system did not say what the system calls the job.
    #[error(
        "{command} printed no job id, so it cannot be followed or cancelled from here; if it was accepted, the system's own list shows it"
    )]
    NoId {
        /// The command.
        command: String,
    },
    /// A program of the system could not be started, or its output not be read.
    #[error("{command}: {source}")]
    Command {
        /// The command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no token for a world of several hosts.
    #[error("no token for the ranks: {0}")]
    Token(#[from] brigade_launch::Error),
}

/// What a program printed, each line once, and without the log of its library if there is anything else.
fn said(stderr: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in stderr.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let own: Vec<&str> = lines.iter().copied().filter(|line| !is_logged(line)).collect();
    let shown = match own.is_empty() {
        true => lines.split_off(lines.len().saturating_sub(1)),
        false => own,
    };
    match shown.join("\n").trim() {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

/// Whether a line is one of Kubernetes' logs, which `kubectl` prints for each attempt: `E1130 21:47:34.836460    8175 memcache.go:265] …`.
fn is_logged(line: &str) -> bool {
    let Some((head, _)) = line.split_once("] ") else { return false };
    let mut words = head.split_whitespace();
    let (day, time) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_day = |digits: &str| digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let is_time = |text: &str| text.bytes().all(|letter| letter.is_ascii_digit() || b":.".contains(&letter));
    day.strip_prefix(['I', 'W', 'E', 'F']).is_some_and(is_day) && time.contains(':') && is_time(time)
}

/// A value on one line, which is seen even if it is empty.
fn shown(given: &str) -> String {
    if given.is_empty() {
        return "''".into();
    }
    let letter = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    given.chars().map(letter).collect()
}

impl Error {
    /// A value that is not possible.
    pub(crate) fn value(option: &str, given: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Value { option: option.into(), given: shown(&given.to_string()), allowed: allowed.into() }
    }

    /// Whether a program of the system said nothing about the job, which may run all the same.
    pub(crate) fn is_without_answer(&self) -> bool {
        match self {
            Self::Failed { .. } => true,
            Self::Command { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// Whether the user can fix it with a different command line, as opposed to something that went wrong while
    /// it ran.
    pub fn is_usage(&self) -> bool {
        !matches!(
            self,
            Self::Failed { .. }
                | Self::Half { .. }
                | Self::NoId { .. }
                | Self::Command { .. }
                | Self::File { .. }
        )
    }
}

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_logs_for_each_attempt_is_not_shown() {
        let log = |at: &str| {
            format!(
                "E1130 21:47:34.{at}    8175 memcache.go:265] \"Unhandled Error\" err=\"connection refused\"\n"
            )
        };
        let refused = "The connection to the server localhost:8080 was refused\n";
        let both = format!("{}{}{refused}", log("836460"), log("837712"));
        assert_eq!(said(&both), format!(": {}", refused.trim()));
        assert_eq!(said(&format!("{refused}{refused}")), format!(": {}", refused.trim()));
        // Where there is nothing else, the last is better than none.
        assert_eq!(
            said(&format!("{}{}", log("836460"), log("837712"))),
            format!(": {}", log("837712").trim())
        );
        for kept in ["Error from server (NotFound): no", "E1130] a", "E113 21:47:34 1 a.go:1] b", "a\nb"] {
            assert_eq!(said(kept), format!(": {kept}"));
        }
        assert_eq!(said(" \n"), "");
    }
}
