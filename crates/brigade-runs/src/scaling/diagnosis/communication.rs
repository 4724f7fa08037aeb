//! Communication that computing does not hide, and the pipeline's bubble.

use brigade_plan::PipelineScheduleKind;
use brigade_report::{counted, duration};

use super::{Cause, Finding};
use crate::run::Run;
use crate::scaling::pipeline::{RunPipeline, micro_batches};
use crate::scaling::profile::{Profile, SCALARS};

/// Sums that take a time mostly of their own, not of their bytes, below this rate, where the network's delay is not known: bytes per
/// second of a rank.
const SLOW_RATE: f64 = 20e6;

/// Sums over workers that make updates of their own, and waits for the slowest of them.
const OUTER_STEP: &str = "outer_step";

/// What a rank sends in a step of which latency may be the cause, in bytes.
const FEW_BYTES: f64 = 4e6;

/// The most that `zero.prefetch` may be.
const MOST_PREFETCH: usize = 1000;

/// The bubble beyond what an unequal split explains, against what twice as many micro-batches would leave.
pub fn bubble(run: &Run, profile: &Profile) -> Option<Finding> {
    let pipeline = RunPipeline::of(run)?;
    let RunPipeline { kind, stages, chunks, micro_batches, micro_batch_size } = pipeline;
    let own = (profile.bubble - profile.imbalance()).max(0.0);
    let saved = own * (1.0 - pipeline.idle_over_busy(2) / pipeline.idle_over_busy(1));
    let percent = |seconds: f64| format!("{:.0}%", 100.0 * seconds / profile.step);
    let (idle, filling) = (percent(profile.bubble), percent(own));
    let of_which = match idle == filling {
        true => String::new(),
        false => format!(", {filling} without what unequal stages explain"),
    };
    let of_chunks = if chunks > 1 { format!(" of {chunks} chunks") } else { String::new() };
    let how = match micro_batch_size {
        0 | 1 => "a larger `train.global_batch_size`, as each has one sample already",
        _ => "a smaller `train.micro_batch_size`, or a larger `train.global_batch_size`",
    };
    let can_be = |chunks: usize| run.blocks().is_none_or(|blocks| stages * chunks <= blocks);
    let or_chunks = match kind {
        // Interleaving takes micro-batches in groups of as many as there are stages.
        _ if !micro_batches.is_multiple_of(stages) => "",
        PipelineScheduleKind::GPipe | PipelineScheduleKind::OneFOneB if can_be(2) => {
            ", and `pipeline.schedule = \"interleaved-1f1b\"` with `pipeline.chunks = 2` would do about as much"
        }
        PipelineScheduleKind::Interleaved if can_be(2 * chunks) => {
            ", and twice as many `pipeline.chunks` would do about as much"
        }
        _ => "",
    };
    Finding::new(Cause::Bubble, saved, profile.step, |gain| {
        format!(
            "{stages} stages{of_chunks} fill and drain with {} per step, and are idle for {idle} of it{of_which}; twice as many \
             micro-batches ({how}) would make training about {gain:.0}% faster{or_chunks}",
            counted(micro_batches, "micro-batch")
        )
    })
}

/// Sums of gradients and gathers of parameters that are waited for.
pub fn exposed(run: &Run, profile: &Profile) -> Option<Finding> {
    let (spent, step) = (profile.communication_spent, profile.whole_step.mean);
    let waited = spent.mean;
    let (what, _) = profile.communication_shares.first()?;
    let is_repeated = run.setting("zero.reduce_every") == Some("\"micro_batch\"")
        && run.setting("zero.stage").is_some_and(|stage| ["2", "3"].contains(&stage));
    let reduced = seconds_for(profile, "reduce_scatter");
    if let Some(micro_batches) =
        micro_batches(run).filter(|many| is_repeated && *many > 1.0 && reduced > waited / 2.0)
    {
        let saved = reduced * (1.0 - 1.0 / micro_batches);
        return Finding::new(Cause::RepeatedReduction, saved, step, |gain| {
            format!(
                "gradients are summed over the ranks after each of {micro_batches:.0} micro-batches, which takes {} of a step that backward does \
                 not hide; `zero.reduce_every = \"step\"` sends {micro_batches:.0} times less, and would make training about {gain:.0}% faster for \
                 more memory",
                duration(reduced)
            )
        });
    }
    // How much an outer step sends, the batch does not change.
    let small = what != OUTER_STEP && is_latency(run, profile);
    let waits_for_a_rank = what == SCALARS && !(small && profile.stage_count() < 2);
    let advice = match what.as_str() {
        "all_gather" => &fewer_gathers(run, small),
        OUTER_STEP => fewer_outer_steps(run),
        _ if waits_for_a_rank => {
            "ranks wait at the end of a step for the slowest one, not for data: `--profile-steps` and `brigade inspect timeline` say \
            which one, and why"
        }
        // Latency does not depend on the bytes.
        _ if !small
            && is_set(run, "compute.reduce_dtype", "\"fp32\"")
            && is_set(run, "comm.compress", "\"none\"") =>
        {
            "more micro-batches per step (`train.global_batch_size`) send the same bytes for more targets, and `compute.reduce_dtype = \
            \"bf16\"` sends half"
        }
        _ => "more micro-batches per step (`train.global_batch_size`) send the same bytes for more targets",
    };
    let is_small_batch = small && !waits_for_a_rank;
    let cause = if is_small_batch { Cause::SmallBatch } else { Cause::ExposedCommunication };
    let why = match is_small_batch {
        true => {
            "so little is sent that this is latency, not bandwidth: the batch is too small for this many ranks; "
        }
        false => "",
    };
    let hidden = match profile.hidden {
        Some(hidden) => format!(" (and {} that it does)", duration(hidden)),
        None => String::new(),
    };
    Finding::new(cause, waited, step, |gain| {
        format!(
            "{} ({:.0}% of the time) is communication that computing does not hide{hidden}, mostly {what}; {why}{advice}; hiding all of it would make training {gain:.0}% faster",
            spent.text(),
            100.0 * waited / step
        )
    })
}

/// What makes ranks wait less for parameters: under ZeRO-3 they are gathered for each block, in other stages after the update. `is_latency`:
/// fewer bytes would not help.
fn fewer_gathers(run: &Run, is_latency: bool) -> String {
    if matches!(run.setting("zero.stage"), Some("1" | "2")) {
        let codes = match !is_latency && is_set(run, "comm.compress_gathers", "\"none\"") {
            true => "`comm.compress_gathers = \"int8\"` sends less, ",
            false => "",
        };
        return format!(
            "new parameters are gathered after each update: a larger `train.global_batch_size` gathers them for more targets, {codes}and without \
            ZeRO (`zero.stage = 0`) there are only sums, which backward can hide"
        );
    }
    let earlier = more_prefetch(run).map(|blocks| format!("`zero.prefetch = {blocks}`"));
    let kept = is_set(run, "zero.keep_gathered", "false").then(|| "`zero.keep_gathered = true`".to_owned());
    let ways: Vec<String> = earlier.into_iter().chain(kept).collect();
    match ways.is_empty() {
        true => "a lower ZeRO stage gathers less".to_owned(),
        false => format!("{} or a lower ZeRO stage gather earlier or less", ways.join(", ")),
    }
}

/// Twice as many blocks ahead as the run gathers, as long as the model has more than those.
fn more_prefetch(run: &Run) -> Option<usize> {
    let own = run.setting("zero.prefetch").map_or(Some(1), |own| own.parse::<usize>().ok())?;
    let most = run.blocks().unwrap_or(usize::MAX).min(MOST_PREFETCH);
    (own < most).then(|| (2 * own).clamp(1, most))
}

/// What makes workers wait less for their outer steps.
fn fewer_outer_steps(run: &Run) -> &'static str {
    let is_diloco = run.setting("strategy.name") == Some("\"diloco\"");
    let (is_whole, waits) =
        (is_set(run, "strategy.outer_dtype", "\"fp32\""), is_set(run, "strategy.overlap_steps", "0"));
    match (is_diloco, is_whole, waits) {
        (true, true, true) => {
            "a larger `strategy.inner_steps` sends the same bytes more rarely, `strategy.outer_dtype = \"bf16\"` or `\"int8\"` sends fewer, and \
            `strategy.overlap_steps` hides them behind inner steps"
        }
        (true, true, false) => {
            "a larger `strategy.inner_steps` sends the same bytes more rarely, and `strategy.outer_dtype = \"bf16\"` or `\"int8\"` sends fewer"
        }
        (true, false, true) => {
            "a larger `strategy.inner_steps` sends the same bytes more rarely, and `strategy.overlap_steps` hides them behind inner steps"
        }
        _ => "a larger `strategy.inner_steps` sends the same bytes more rarely",
    }
}

/// Whether a setting has this value, or an older file does not have it.
fn is_set(run: &Run, name: &str, value: &str) -> bool {
    run.setting(name).is_none_or(|own| own == value)
}

/// What is waited for something in a step, on average.
fn seconds_for(profile: &Profile, what: &str) -> f64 {
    let share = profile.communication_shares.iter().find(|(name, _)| name == what);
    share.map_or(0.0, |(_, share)| share * profile.communication_spent.mean)
}

/// Whether waits are long for the few bytes that are sent: half of them, or more, are delays of the network, of which an all-reduce
/// costs two.
fn is_latency(run: &Run, profile: &Profile) -> bool {
    let Some(last) = run.records.last() else { return false };
    let bytes = last.comm_bytes as f64 / profile.ranks as f64;
    // Of replicas of shards, some collectives stay within a host.
    let is_within_hosts = run.setting("mesh.replicate").is_some_and(|replicas| replicas != "1");
    let is_slow = match run.network_delay().filter(|_| !is_within_hosts) {
        Some(delay) => {
            let delays = last.collectives.iter().map(|(what, sent)| match what.as_str() {
                "all_reduce" => 2 * sent.calls,
                "reduce_scatter" | "all_gather" | "all_to_all" | SCALARS => sent.calls,
                _ => 0,
            });
            delay * delays.sum::<u64>() as f64 >= profile.communication_spent.mean / 2.0
        }
        None => bytes / profile.communication_spent.mean < SLOW_RATE,
    };
    is_slow && bytes < FEW_BYTES
}
