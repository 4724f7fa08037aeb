//! Whether a round ended as it may.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::Raced;
use super::deed::Deed;
use super::state::State;
use crate::chaos::reference::Reference;

const AT_WORK: &str = "another run is at work in this folder";

/// # Errors
/// If something was lost, or a command's exit code is not what became of it.
pub fn round(
    raced: &[Raced],
    before: &State,
    after: &State,
    reference: &Reference,
    steps: &BTreeMap<u64, Vec<u8>>,
) -> Result<()> {
    ensure!(after.newest >= before.newest, "of {:?} only {:?} is left", before.newest, after.newest);
    ensure!(
        !before.is_finished(reference) || after.is_finished(reference),
        "the weights of the finished run are others, or gone"
    );
    ensure!(before.weights.is_none() || after.weights.is_some(), "the run's weights are gone");
    let are_whole = |weights: &Vec<u8>| steps.values().any(|step| step == weights);
    if let Some(weights) = &after.weights {
        ensure!(are_whole(weights), "the run's weights are those of no step: {} bytes", weights.len());
    }
    for (name, content) in &after.files {
        let is_whole = match name.as_str() {
            "picture.svg" => content.trim_ascii_end().ends_with(b"</svg>"),
            // What a killed command left aside.
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
        command(one, &others, before, after, reference)
            .with_context(|| format!("command {index}, {:?}, ended with {}", one.deed, one.end.status))?;
    }
    for name in raced.iter().filter_map(|one| match one.deed {
        Deed::Consolidate { to: Some(name), overwrite: false } => Some(name),
        _ => None,
    }) {
        let keeps = |one: &&Raced| {
            one.deed == Deed::Consolidate { to: Some(name), overwrite: false } && one.end.status.success()
        };
        let most = usize::from(!before.files.contains_key(name));
        ensure!(raced.iter().filter(keeps).count() <= most, "{name} was replaced without --overwrite");
    }
    Ok(())
}

fn command(
    one: &Raced,
    others: &[&Raced],
    before: &State,
    after: &State,
    reference: &Reference,
) -> Result<()> {
    let Raced { deed, killed, end } = one;
    let said = |text: &str| end.text.contains(text);
    let trains = others.iter().any(|other| other.deed.trains());
    let code = match end.status.code() {
        None if *killed => return Ok(()),
        // Its rank was killed.
        Some(1) if *killed && deed.trains() => return Ok(()),
        Some(code) => code,
        None => bail!("nobody killed it"),
    };
    let is_true = match (deed, code) {
        (Deed::Train, 0) => !before.begun && after.is_finished(reference),
        (Deed::Train, 2) if said(AT_WORK) => trains,
        (Deed::Train, 2) => {
            (before.begun || trains)
                && (said("holds results of an earlier run") || said("holds checkpoints of an earlier run"))
        }
        (Deed::Resume, 0) => after.is_finished(reference),
        (Deed::Resume, 2) => said(AT_WORK) && trains,
        (Deed::Consolidate { to: Some(name), .. }, 0) => after.files.contains_key(*name),
        (Deed::Consolidate { to: None, overwrite }, 0) => {
            after.weights.is_some() && (*overwrite || before.weights.is_none())
        }
        (Deed::Consolidate { to: None, .. }, 2) if said(AT_WORK) => trains,
        (Deed::Consolidate { overwrite: false, .. }, 2) if said("is there already") => true,
        (Deed::Verify | Deed::List, 0) => true,
        (Deed::Consolidate { .. } | Deed::Verify, 1) => {
            before.newest.is_none() && (said("holds no checkpoint") || said("holds no whole checkpoint"))
        }
        (Deed::Consolidate { .. } | Deed::Verify | Deed::List, 2) => !before.begun && said("is no folder"),
        (Deed::Generate, 0) => after.weights.is_some(),
        (Deed::Generate, 2) => {
            before.weights.is_none() && (said("it has no") || said("there is no such folder"))
        }
        (Deed::Picture, 0) => after.files.contains_key("picture.svg"),
        _ => false,
    };
    ensure!(is_true, "which is not so");
    Ok(())
}
