//! What makes a run slow, in sentences.

mod communication;
mod outside;
mod ranks;
mod slow_ranks;

use brigade_report::counted;
use serde::Serialize;

use super::profile::Profile;
use crate::run::Run;

/// What may make a run slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A rank, or several, take longer than the others that do the same.
    SlowRank,
    /// Another rank is the last one in each step.
    Jitter,
    /// A rank neither computes nor waits for a part of each step, or is in hooks after it.
    HostStalls,
    /// Ranks wait for data.
    InputStarvation,
    /// A pipeline stage has more to do than the others.
    StageImbalance,
    /// The pipeline fills and drains with too few micro-batches.
    Bubble,
    /// Sums and parameters that computing does not hide.
    ExposedCommunication,
    /// Gradients are summed over the ranks more often than needed.
    RepeatedReduction,
    /// So little is computed in a step that communication's fixed costs are large.
    SmallBatch,
    /// Checkpoints interrupt training.
    Checkpoints,
    /// Time passes between steps: validation, restarts, an own loop.
    OutsideSteps,
}

/// Something that makes a run slow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What it is.
    pub cause: Cause,
    /// The rank or stage that it is about, if it is about one.
    pub place: Option<usize>,
    /// By how many percent more would be trained in the same time without it.
    pub gain_percent: f64,
    /// What is the matter, and what to change.
    pub sentence: String,
}

/// Less than this is not worth a change, in percent.
const WORTH: f64 = 4.0;

/// Fewer steps say nothing.
const FEWEST_STEPS: usize = 5;

impl Finding {
    /// What takes `seconds` of a step of `step` seconds; none if that is little.
    fn new(cause: Cause, seconds: f64, step: f64, sentence: impl FnOnce(f64) -> String) -> Option<Self> {
        let gain_percent = 100.0 * seconds / (step - seconds).max(1e-3 * step);
        (seconds > 0.0 && gain_percent >= WORTH).then(|| Self {
            cause,
            place: None,
            gain_percent,
            sentence: sentence(gain_percent),
        })
    }

    fn at(self, place: usize) -> Self {
        Self { place: Some(place), ..self }
    }
}

/// Why nothing can be said of a run, if it has made too few steps.
pub fn too_few_steps(run: &Run) -> Option<String> {
    of_few_steps(&run.name, &Profile::of(run))
}

pub(super) fn of_few_steps(name: &str, profile: &Profile) -> Option<String> {
    (profile.steps < FEWEST_STEPS).then(|| {
        format!(
            "{name} has {} after its first ones, too few to say what to change: {FEWEST_STEPS} are needed",
            counted(profile.steps, "step")
        )
    })
}

/// What makes a run slow, the greatest gain first. Nothing for a run that is well, and for one of [very few steps](too_few_steps).
pub fn diagnose(run: &Run) -> Vec<Finding> {
    let profile = Profile::of(run);
    if profile.steps < FEWEST_STEPS || profile.step <= 0.0 {
        return Vec::new();
    }
    let mut findings = Vec::new();
    findings.extend(slow_ranks::slow_ranks(run, &profile));
    findings.extend(ranks::jitter(&profile));
    findings.extend(ranks::host_stalls(&profile));
    findings.extend(ranks::starvation(run, &profile));
    findings.extend(ranks::imbalance(&profile));
    findings.extend(communication::bubble(run, &profile));
    findings.extend(communication::exposed(run, &profile));
    findings.extend(outside::checkpoints(run));
    findings.extend(outside::hooks(run));
    findings.extend(outside::between_steps(run));
    findings.sort_by(|a, b| b.gain_percent.total_cmp(&a.gain_percent));
    findings
}
