//! What was chosen for a run before it was interrupted.

use super::Choice;
use crate::object_results;
use crate::settings::{Resume, Settings, StandardFlags};

/// What was chosen for a run and why, in its folder.
pub const CHOICE_FILE: &str = "auto.json";

/// What was chosen for the run that is resumed; none for a new run.
pub fn earlier_choice(flags: &StandardFlags, settings: &Settings) -> Option<Choice> {
    let dir = match flags.resume.as_ref()? {
        Resume::Auto => &settings.output.dir,
        Resume::From(dir) => dir,
    };
    let folder = object_results::with_files(dir, &[CHOICE_FILE]).ok()?;
    let text = std::fs::read(folder.join(CHOICE_FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}
