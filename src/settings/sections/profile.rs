//! Settings of timelines.

use std::ops::RangeInclusive;

use brigade_report::counted;
use serde::{Deserialize, Serialize};

use crate::settings::SettingError;

/// The most steps of one timeline.
const MAX_STEPS: u64 = 100;

const OPTION: &str = "profile.steps (--profile-steps)";

/// `[profile]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileSettings {
    /// Steps to write a timeline of all ranks for, as in `10..12` (three steps) or `10`; empty for none. Perfetto opens
    /// `profile/steps-10-12.json` in the run's folder, and `brigade inspect timeline` says which ranks are idle in it and why.
    pub steps: String,
}

impl ProfileSettings {
    /// The steps; none for no timeline.
    ///
    /// # Errors
    /// If they are not a range of steps, or too many.
    pub fn range(&self) -> Result<Option<RangeInclusive<u64>>, SettingError> {
        if self.steps.is_empty() {
            return Ok(None);
        }
        let (first, last) = self.steps.split_once("..").unwrap_or((&self.steps, &self.steps));
        let number = |text: &str| text.trim_start_matches('=').parse::<u64>().ok();
        match (number(first), number(last)) {
            (Some(first), Some(last)) if (1..=last).contains(&first) && last - first < MAX_STEPS => {
                Ok(Some(first..=last))
            }
            _ => {
                let allowed = format!(
                    "it must be a step, or a range of at most {MAX_STEPS} steps such as 10..12 (three steps); the first step is 1"
                );
                Err(SettingError::new(OPTION, &self.steps, allowed))
            }
        }
    }

    /// The same, for a run of this many steps.
    ///
    /// # Errors
    /// As [`range`](Self::range), and if the run ends before the last of them.
    pub(crate) fn range_within(&self, total_steps: u64) -> Result<Option<RangeInclusive<u64>>, SettingError> {
        let range = self.range()?;
        if range.as_ref().is_some_and(|range| *range.end() > total_steps) {
            let allowed =
                format!("the run has {} (train.steps, train.epochs)", counted(total_steps as usize, "step"));
            return Err(SettingError::new(OPTION, &self.steps, allowed));
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn steps_are_a_range_with_both_ends() {
        let of = |steps: &str| ProfileSettings { steps: steps.into() };
        assert_eq!(of("").range().unwrap(), None);
        assert_eq!(of("10..12").range().unwrap(), Some(10..=12));
        assert_eq!(of("10..=12").range().unwrap(), of("10..12").range().unwrap());
        assert_eq!(of("7").range_within(7).unwrap(), Some(7..=7));
        for wrong in ["0..2", "3..2", "x", "1..", "1..101", "-1..2"] {
            let message = of(wrong).range().unwrap_err().to_string();
            let start = format!("profile.steps (--profile-steps) = {wrong} is not possible: it must be");
            assert!(message.starts_with(&start), "{message}");
        }
        let message = of("10..12").range_within(11).unwrap_err().to_string();
        assert!(message.ends_with("the run has 11 steps (train.steps, train.epochs)"), "{message}");
    }
}
