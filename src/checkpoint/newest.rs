//! The checkpoint that a run resumes from.

use anyhow::Context;
use brigade_checkpoint::{Checkpoint, list, open_storage};

use super::RunDescription;

/// The newest checkpoint at a location that can be opened: its step and its run's description. The inner error says what is wrong
/// with those that are there.
///
/// # Errors
/// If the location cannot be read.
pub(crate) fn newest(location: &str) -> anyhow::Result<Result<(u64, RunDescription), String>> {
    let storage = open_storage(location)?;
    let mut wrong = Vec::new();
    for found in list(&*storage)? {
        let opened = found.summary.and_then(|_| Checkpoint::open(storage.clone(), found.step));
        let opened = match opened {
            Err(error) if !error.is_corruption() => {
                return Err(error).with_context(|| format!("cannot resume from step {}", found.step));
            }
            opened => opened,
        };
        let described = opened.map_err(|error| error.to_string()).and_then(|checkpoint| {
            serde_json::from_value(checkpoint.manifest().state.settings.clone())
                .map_err(|error| format!("its description of the run cannot be read: {error}"))
        });
        match described {
            Ok(run) => return Ok(Ok((found.step, run))),
            Err(why) => wrong.push(format!("step {}: {why}", found.step)),
        }
    }
    Ok(Err(match wrong.is_empty() {
        true => format!("{location} holds no checkpoint"),
        false => format!("{location} holds no whole checkpoint: {}", wrong.join("; ")),
    }))
}
