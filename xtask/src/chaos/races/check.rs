//! Checks that a round ended in a way that its commands allow.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::Outcome;
use super::command::UserCommand;
use super::state::State;
use crate::chaos::run::Reference;

const IN_USE: &str = "another run is using this folder";

/// # Errors
/// If something was lost, or a command's exit code contradicts what it left behind.
pub fn round(
    raced: &[Outcome],
    before: &State,
    after: &State,
    reference: &Reference,
    steps: &BTreeMap<u64, Vec<u8>>,
) -> Result<()> {
    ensure!(
        after.newest >= before.newest,
        "checkpoint {:?} was lost, {:?} is the newest",
        before.newest,
        after.newest
    );
    ensure!(
        !before.is_finished(reference) || after.is_finished(reference),
        "the weights of the finished run have changed, or are gone"
    );
    ensure!(before.weights.is_none() || after.weights.is_some(), "the run's weights are gone");
    let are_whole = |weights: &Vec<u8>| steps.values().any(|step| step == weights);
    if let Some(weights) = &after.weights {
        ensure!(are_whole(weights), "the run's weights belong to no step: {} bytes", weights.len());
    }
    for (name, content) in &after.files {
        let is_whole = match name.as_str() {
            "picture.svg" => content.trim_ascii_end().ends_with(b"</svg>"),
            // A temporary file that a killed command left.
            name if name.starts_with('.') => {
                raced.iter().any(|one| one.killed) || before.files.contains_key(name)
            }
            _ => are_whole(content),
        };
        ensure!(is_whole, "{name} is not whole: {} bytes", content.len());
    }
    for (index, one) in raced.iter().enumerate() {
        let others = raced.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let others: Vec<_> = others.collect();
        check_command(one, &others, before, after, reference)
            .with_context(|| format!("command {index}, {:?}, ended with {}", one.command, one.end.status))?;
    }
    for name in raced.iter().filter_map(|one| match one.command {
        UserCommand::Consolidate { to: Some(name), overwrite: false } => Some(name),
        _ => None,
    }) {
        let succeeded = |one: &&Outcome| {
            one.command == UserCommand::Consolidate { to: Some(name), overwrite: false }
                && one.end.status.success()
        };
        let most = usize::from(!before.files.contains_key(name));
        ensure!(raced.iter().filter(succeeded).count() <= most, "{name} was replaced without --overwrite");
    }
    Ok(())
}

fn check_command(
    one: &Outcome,
    others: &[&Outcome],
    before: &State,
    after: &State,
    reference: &Reference,
) -> Result<()> {
    let Outcome { command, killed, end } = one;
    let said = |text: &str| end.text.contains(text);
    let trains = others.iter().any(|other| other.command.trains());
    let code = match end.status.code() {
        None if *killed => return Ok(()),
        // Its rank was killed.
        Some(1) if *killed && command.trains() => return Ok(()),
        Some(code) => code,
        None => bail!("it was not killed"),
    };
    let is_right = match (command, code) {
        (UserCommand::Train, 0) => !before.begun && after.is_finished(reference),
        (UserCommand::Train, 2) if said(IN_USE) => trains,
        (UserCommand::Train, 2) => {
            (before.begun || trains)
                && (said("holds results of an earlier run") || said("holds checkpoints of an earlier run"))
        }
        (UserCommand::Resume, 0) => after.is_finished(reference),
        (UserCommand::Resume, 2) => said(IN_USE) && trains,
        (UserCommand::Consolidate { to: Some(name), .. }, 0) => after.files.contains_key(*name),
        (UserCommand::Consolidate { to: None, overwrite }, 0) => {
            after.weights.is_some() && (*overwrite || before.weights.is_none())
        }
        (UserCommand::Consolidate { to: None, .. }, 2) if said(IN_USE) => trains,
        (UserCommand::Consolidate { overwrite: false, .. }, 2) if said("already exists") => true,
        (UserCommand::Verify | UserCommand::List, 0) => true,
        (UserCommand::Consolidate { .. } | UserCommand::Verify, 1) => {
            before.newest.is_none() && (said("holds no checkpoint") || said("holds no whole checkpoint"))
        }
        (UserCommand::Consolidate { .. } | UserCommand::Verify | UserCommand::List, 2) => {
            !before.begun && said("is not a folder")
        }
        (UserCommand::Generate, 0) => after.weights.is_some(),
        (UserCommand::Generate, 2) => {
            before.weights.is_none() && (said("it has no") || said("there is no such folder"))
        }
        (UserCommand::Picture, 0) => after.files.contains_key("picture.svg"),
        _ => false,
    };
    ensure!(is_right, "the exit code contradicts what is in the folder");
    Ok(())
}
