//! What a run leaves open until it begins: the size of micro-batches.
//!
//! What is found takes the place of `auto` in the command line, with which the ranks are started, so that a run means the same as if it had been given.

mod command_line;
mod nodes;
mod processes;
mod resumed;
mod trial;

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context, bail};
use brigade_core::PP;
use brigade_launch::{Detected, interrupt};
use serde::{Deserialize, Serialize};

use super::ranks::Ranks;
use crate::error::print_stderr;
use crate::settings::{MicroBatchSize, Resume, SettingError, Settings, StandardFlags};

pub use command_line::{has_option, without};
use nodes::Nodes;
pub use resumed::{CHOICE_FILE, earlier_choice};
use trial::{Trial, run_trial};

/// What was chosen for a run before it began.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// The arguments that ranks are started with, instead of those of this process, which leave something open.
    pub args: Vec<OsString>,
    /// What was chosen and why, for [`CHOICE_FILE`].
    pub record: Choice,
    /// How the same is chosen again for another number of nodes.
    pub elastic_args: Option<ElasticArgs>,
}

/// What an elastic run adds to the arguments of its ranks for each number of nodes.
#[derive(Clone)]
pub struct ElasticArgs {
    /// The arguments without it.
    pub args: Vec<OsString>,
    /// What it adds, or why ranks cannot run on this many nodes.
    pub flags: Arc<dyn Fn(usize) -> Result<Vec<String>, String> + Send + Sync>,
}

impl fmt::Debug for ElasticArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElasticArgs").field("args", &self.args).finish_non_exhaustive()
    }
}

/// What was chosen for a run, and why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The ranks that it was chosen for.
    pub ranks: usize,
    /// What took the place of `--mesh auto`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mesh: Vec<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mesh_reason: String,
    /// What took the place of `--micro-batch-size auto`.
    #[serde(flatten)]
    pub micro_batch: MicroBatch,
}

/// The size of micro-batches that was chosen for a run, and why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MicroBatch {
    /// The size.
    #[serde(default, rename = "micro_batch_size", skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Why.
    #[serde(default, rename = "micro_batch_reason", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The sizes that were tried, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Trial>,
}

impl StandardFlags {
    /// Tries sizes of micro-batches, where `--micro-batch-size auto` asks for it, and puts the fastest that fits in its place: each size trains two
    /// steps in a child process, on all nodes. `args`: the arguments of this program with all else decided; `settings`: those that they make, for this many
    /// `ranks`; `chosen`: what is known already.
    ///
    /// # Errors
    /// If another launcher has started the ranks, the number of nodes may change, a node is lost, or no size can be trained with.
    pub fn choose_micro_batch(
        &self,
        chosen: Chosen,
        settings: &Settings,
        ranks: &Ranks,
    ) -> anyhow::Result<Chosen> {
        let Chosen { args, mut record, elastic_args } = chosen;
        record.ranks = ranks.world();
        if self.micro_batch_size != Some(MicroBatchSize::Auto) {
            return Ok(Chosen { args, record, elastic_args });
        }
        let open = without(&args, &["--micro-batch-size"], &[]);
        if !ranks.is_launcher {
            bail!(
                "--micro-batch-size auto tries sizes before the ranks start, which needs Brigade's own launcher; give the size that it finds on one node"
            );
        }
        if settings.strategy.is_elastic() || settings.strategy.separate_worlds().is_some() {
            bail!(
                "--micro-batch-size auto would try sizes within the run of the other workers (--coordinator, --listen); give a size"
            );
        }
        let sizes = Sizes::new(settings, ranks)?;
        sizes.check(settings, ranks.world())?;
        let say = |text: &str| {
            if !self.quiet {
                print_stderr(text);
            }
        };
        let search = |run_trial: &mut dyn FnMut(usize) -> anyhow::Result<Trial>| {
            let (size, tried) = sizes.search(settings.train.micro_batch_size, &mut |size| {
                let trial = run_trial(size)?;
                say(&format!("micro-batch size {size}: {trial}"));
                Ok(trial)
            })?;
            Ok(MicroBatch { size, reason: reason(size, &tried), tried })
        };
        // All nodes see the same, also one that replaces another while the others run.
        let kept = earlier_choice(self, settings).and_then(|earlier| sizes.kept(earlier.micro_batch));
        record.micro_batch = if let Some(kept) = kept {
            kept
        } else if self.dry_run {
            let size = sizes.nearest(settings.train.micro_batch_size);
            let reason = format!("{size} in this dry run; a run would try sizes");
            MicroBatch { size: Some(size), reason, tried: Vec::new() }
        } else {
            let of_trials = self.args_of_trials(&open)?;
            interrupt::block_signals();
            interrupt::learn_of_ends();
            let variable = |name: &str| std::env::var(name).ok();
            let detected = brigade_launch::detect(&self.world, &variable)?;
            match &detected {
                Detected::Node(node) if node.nnodes > 1 => {
                    let token = || detected.token(&variable);
                    Nodes::join(node, token, &of_trials, settings, ranks)?.choose(search)?
                }
                _ => search(&mut |size| run_trial(&of_trials, size, settings, ranks))?,
            }
        };
        let size = record.micro_batch.size.with_context(|| {
            let why = record.micro_batch.tried.last().map(ToString::to_string).unwrap_or_default();
            format!("--micro-batch-size auto found no size that works; the last one, {why}")
        })?;
        say(&format!("--micro-batch-size auto: {}", record.micro_batch.reason));
        let mut args = open;
        args.extend(["--micro-batch-size".into(), size.to_string().into()]);
        if !has_option(&args, "--nproc-per-node") {
            args.extend(["--nproc-per-node".into(), ranks.per_node.to_string().into()]);
        }
        Ok(Chosen { args, record, elastic_args })
    }

    /// The arguments of trials: they resume nothing, but are of the configuration of the run that is resumed.
    fn args_of_trials(&self, args: &[OsString]) -> anyhow::Result<Vec<OsString>> {
        let mut args = args.to_vec();
        if let Some(Resume::From(dir)) = &self.resume {
            if let Some(config) = &self.config {
                bail!(
                    "--micro-batch-size auto tries sizes with one file of settings, and --resume {} and --config {} are two; give a size",
                    dir.display(),
                    config.display()
                );
            }
            let files = self.config_files()?.into_iter().take(1);
            args.extend(files.flat_map(|file| ["--config".into(), file.into_os_string()]));
        }
        Ok(args)
    }
}

fn reason(size: Option<usize>, tried: &[Trial]) -> String {
    let Some(size) = size else { return String::new() };
    let others: Vec<String> = tried
        .iter()
        .filter(|trial| trial.size != size)
        .map(|trial| format!("{}: {trial}", trial.size))
        .collect();
    let own = tried.iter().find(|trial| trial.size == size).map(ToString::to_string).unwrap_or_default();
    let others = if others.is_empty() { String::new() } else { format!(" (tried: {})", others.join("; ")) };
    format!("{size}, the fastest that fits: {own}{others}")
}

/// Sizes of micro-batches that divide what a rank has of a global batch, rising.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sizes(Vec<usize>);

impl Sizes {
    fn new(settings: &Settings, ranks: &Ranks) -> anyhow::Result<Self> {
        let (mesh, global) = (&settings.mesh, settings.train.global_batch_size);
        let dp = match (mesh.dp, settings.strategy.has_workers()) {
            (0, _) | (_, true) => {
                ranks.world().saturating_sub(settings.strategy.resolved_servers()) / mesh.pp.max(1)
            }
            (dp, false) => dp,
        };
        if dp == 0 || !global.is_multiple_of(dp) {
            bail!(
                "train.global_batch_size (--global-batch-size) = {global} is not possible: {dp} data-parallel ranks (beside mesh.{PP} = {}) need a multiple of {dp}",
                mesh.pp
            );
        }
        Ok(Self((1..=global / dp).filter(|size| (global / dp).is_multiple_of(*size)).collect()))
    }

    /// Checks the other settings, before any size is tried: fails if this many ranks could not train with any of them.
    fn check(&self, settings: &Settings, world: usize) -> Result<(), SettingError> {
        let mut settings = settings.clone();
        let mut first = Ok(());
        for size in &self.0 {
            settings.train.micro_batch_size = *size;
            match settings.plan(world, 1) {
                Ok(_) => return Ok(()),
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }

    /// What was chosen for a run before it was interrupted, if it is still possible.
    fn kept(&self, earlier: MicroBatch) -> Option<MicroBatch> {
        let size = earlier.size.filter(|size| self.0.contains(size))?;
        let reason = format!("{size}, as before the run was resumed");
        Some(MicroBatch { reason, ..earlier })
    }

    /// The largest that is not above a size.
    fn nearest(&self, size: usize) -> usize {
        self.0.iter().copied().rfind(|other| *other <= size).unwrap_or(1)
    }

    /// The smallest that is at least twice a size.
    fn above(&self, size: usize) -> Option<usize> {
        self.0.iter().copied().find(|other| *other >= 2 * size)
    }

    /// The largest that is at most half a size.
    fn below(&self, size: usize) -> Option<usize> {
        self.0.iter().copied().rfind(|other| 2 * *other <= size)
    }

    /// Tries sizes from `start` on: halves it until one fits, then doubles it while that is faster, or else halves it while that is. Gives the fastest.
    fn search(
        &self,
        start: usize,
        attempt: &mut dyn FnMut(usize) -> anyhow::Result<Trial>,
    ) -> anyhow::Result<(Option<usize>, Vec<Trial>)> {
        let mut tried: Vec<Trial> = Vec::new();
        let mut next = Some(self.nearest(start));
        let mut best: Option<(usize, f64)> = None;
        while let (Some(size), None) = (next, best) {
            tried.push(attempt(size)?);
            best = tried.last().and_then(Trial::rate).map(|rate| (size, rate));
            next = self.below(size);
        }
        let Some(first) = best else { return Ok((None, tried)) };
        for step in [Self::above, Self::below] {
            // Smaller ones are tried only where larger ones are not faster.
            if best != Some(first) {
                break;
            }
            let mut size = first.0;
            while let Some(further) =
                step(self, size).filter(|size| tried.iter().all(|trial| trial.size != *size))
            {
                tried.push(attempt(further)?);
                match (tried.last().and_then(Trial::rate), best) {
                    (Some(rate), Some((_, fastest))) if rate > fastest => best = Some((further, rate)),
                    _ => break,
                }
                size = further;
            }
        }
        Ok((best.map(|(size, _)| size), tried))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::trial::TrialOutcome;
    use super::*;

    /// Which size is found of those that divide 48, from a start on, and in which order sizes are tried; `rate`: targets per second, none if it
    /// does not fit.
    fn found(start: usize, rate: impl Fn(usize) -> Option<f64>) -> (Option<usize>, Vec<usize>) {
        let sizes = Sizes((1..=48).filter(|size| 48 % size == 0).collect());
        let outcome = |size| match rate(size) {
            Some(per_second) => TrialOutcome::Ran { per_second, memory: 1 },
            None => TrialOutcome::Failed("it ran out of memory".into()),
        };
        let mut attempt = |size| Ok(Trial { size, outcome: outcome(size) });
        let (size, tried) = sizes.search(start, &mut attempt).unwrap();
        (size, tried.iter().map(|trial| trial.size).collect())
    }

    #[test]
    fn settings_that_no_size_works_with_are_refused_before_any_is_tried() {
        let mut settings = Settings::default();
        (settings.train.global_batch_size, settings.train.validate_every) = (8, 0);
        (settings.train.sync_every, settings.checkpoint.every) = (2, 3);
        let sizes = Sizes(vec![1, 2, 4]);
        let refused = sizes.check(&settings, 2).unwrap_err().to_string();
        assert!(refused.starts_with("checkpoint.every (--checkpoint-every) = 3"), "{refused}");
        settings.checkpoint.every = 4;
        sizes.check(&settings, 2).unwrap();
        // Some sizes may be impossible.
        Sizes(vec![3, 4]).check(&settings, 2).unwrap();
    }

    #[test]
    fn the_fastest_size_that_fits_is_found() {
        // Larger ones are faster until memory ends.
        let limited = |most: usize| move |size: usize| (size <= most).then_some(size as f64);
        assert_eq!(found(4, limited(20)), (Some(16), vec![4, 8, 16, 48]));
        assert_eq!(found(48, limited(5)), (Some(3), vec![48, 24, 12, 6, 3, 1]));
        // Smaller ones are faster.
        assert_eq!(found(8, |size| Some(1.0 / size as f64)), (Some(1), vec![8, 16, 4, 2, 1]));
        assert_eq!(found(5, |_| None), (None, vec![4, 2, 1]));
        assert_eq!(found(1, |size| Some(if size == 1 { 2.0 } else { 1.0 })), (Some(1), vec![1, 2]));
    }
}
