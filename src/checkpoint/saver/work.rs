//! How far a rank is with a save.

use anyhow::anyhow;

use super::background::Background;

/// How far a rank is with a save; ranks exchange it as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SaveProgress {
    /// No save is under way, or only other ranks have work to do.
    Idle = 0,
    /// Its thread is working.
    Working = 1,
    /// Its thread is done.
    Done = 2,
    /// Its thread failed.
    Failed = 3,
}

impl SaveProgress {
    pub(crate) fn from_number(number: f64) -> Self {
        [Self::Idle, Self::Working, Self::Done]
            .into_iter()
            .find(|p| f64::from(*p as u8) == number)
            .unwrap_or(Self::Failed)
    }
}

/// Work of a save, until its end.
pub(super) enum Work<T> {
    Running(Background<T>),
    Ended(anyhow::Result<T>),
}

impl<T: Send + 'static> Work<T> {
    pub(super) fn progress(&mut self) -> SaveProgress {
        if matches!(self, Self::Running(work) if work.is_done()) {
            let before = std::mem::replace(self, Self::Ended(Err(anyhow!("it was lost"))));
            if let Self::Running(work) = before {
                *self = Self::Ended(work.finish());
            }
        }
        match self {
            Self::Running(_) => SaveProgress::Working,
            Self::Ended(Ok(_)) => SaveProgress::Done,
            Self::Ended(Err(_)) => SaveProgress::Failed,
        }
    }

    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Ended(Ok(value)) => Some(value),
            _ => None,
        }
    }

    pub(super) fn failure(&self) -> String {
        match self {
            Self::Ended(Err(error)) => format!("{error:#}"),
            _ => String::new(),
        }
    }
}
