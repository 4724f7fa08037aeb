//! The table of the best configurations, and what is known of the first.

use super::command::commands;
use super::{NamedModel, billions, by_part, command, count, failures, seconds};
use crate::columns::{aligned, bytes, counted};
use crate::search::{Plan, PlanEvaluation, Workload};

/// The most ranks of a run: `MAX_WORLD_SIZE` of `brigade-comm`.
pub const MAX_RANKS: usize = 1024;

/// What the plan did not know of the model's file and of the cluster, and why training would refuse what was planned.
pub fn notes(workload: &Workload) -> Vec<String> {
    workload.model.note.iter().cloned().chain(notes_on_training(workload)).collect()
}

/// The notes but for that on the model's file, which is above the table.
fn notes_on_training(workload: &Workload) -> Vec<String> {
    let (ranks, most) = (workload.cluster.devices(), workload.model.most_positions);
    let ranks = (ranks > MAX_RANKS)
        .then(|| format!("a run has at most {MAX_RANKS} ranks today; this is what {ranks} would do"));
    let positions = (most > 0 && workload.sequence_length > most).then(|| {
        format!(
            "the model has {most} positions, so training refuses sequences of {} tokens",
            workload.sequence_length
        )
    });
    let measured = workload.cluster.measured.as_ref();
    let gap = measured.and_then(|measured| measured.gap(workload.cluster.nodes));
    [ranks, positions, gap].into_iter().flatten().collect()
}

/// A plan for people. `model` is what the commands of configurations name.
pub fn render(workload: &Workload, plan: &Plan, model: &NamedModel) -> String {
    let mut text = heading(workload, plan);
    if let Some(advice) = &plan.advice {
        text.push_str(&format!(
            "\nNo configuration fits. The leanest, {}, lacks {}:\n  {}\n",
            advice.leanest.label(),
            advice.missing.text(),
            memory(&advice.memory),
        ));
        text.push_str("What would fit:\n");
        advice.changes.iter().for_each(|change| text.push_str(&format!("  {change}\n")));
        if advice.changes.is_empty() {
            text.push_str("  nothing that was tried: a smaller batch, up to 128 times as many nodes, shorter sequences, devices with more memory\n");
        }
    }
    if let Some(best) = plan.best.first() {
        text.push_str(&format!("\n{}\n", table(&plan.best)));
        if plan.best.len() > 1 {
            text.push_str(&format!(
                "\nMemory of a rank of the fullest stage:\n{}\n",
                by_part::memory(&plan.best)
            ));
            text.push_str(&format!("\nTime of a step:\n{}\n\n", by_part::time(&plan.best)));
        }
        text.push_str(&format!("The first, {}:\n", best.candidate.label()));
        text.push_str(&details(workload, best));
        let run = command(workload, best, model);
        let none = || "nothing: Brigade does not train in fp16; plan with --dtype bf16 or fp32".to_owned();
        text.push_str(&format!("  run     {}\n", run.unwrap_or_else(none)));
        if let Some(report) = failures(workload, best, None) {
            text.push_str(&format!("  {}\n", report.text()));
        }
        notes_on_training(workload).iter().for_each(|note| text.push_str(&format!("  note    {note}\n")));
        if let Some((shared, own)) = commands(workload, &plan.best, model).filter(|(_, own)| own.len() > 1) {
            text.push_str(&format!("\nTo run any of them, add its flags to {shared}\n"));
            let rows = own.into_iter().enumerate().map(|(at, flags)| vec![(at + 1).to_string(), flags]);
            text.push_str(&format!("{}\n", aligned(rows.collect()).join("\n")));
        }
    }
    if let Some(tensor) = plan.tensor_parallel.first() {
        let brings = match plan.best.first() {
            Some(best) => format!(
                ", {:+.0}% tokens/s",
                100.0 * (tensor.tokens_per_second / best.tokens_per_second - 1.0)
            ),
            None => String::new(),
        };
        text.push_str(&format!(
            "\nTensor parallelism (not built yet) would look like this{brings}:\n{}\n",
            table(&plan.tensor_parallel)
        ));
    }
    text.push_str(&format!("\n{}", alone(workload, plan)));
    text
}

fn heading(workload: &Workload, plan: &Plan) -> String {
    let Workload { model, cluster, .. } = workload;
    let with_tensor_parallelism = match plan.fitting_with_tensor_parallelism {
        0 => String::new(),
        more => format!(", and {} with tensor parallelism", count(more as f64)),
    };
    let counted_for_mfu = match model.idle_parameters {
        0 => "without the embedding",
        _ => "without the embedding and the experts that a token does not use",
    };
    let (trained, less) = match model.counts.is_empty() {
        true => (String::new(), ""),
        false => {
            let trained = billions(model.all_trained_parameters() as f64);
            (format!("{trained} of which are trained, "), ", frozen ones less than others")
        }
    };
    let note = model.note.as_ref().map_or_else(String::new, |note| format!("note: {note}\n"));
    format!(
        "{}: {} parameters in {}, {trained}{} {counted_for_mfu}, which is how MFU counts them{less}\n\
         {}: {} of {} {}, {} each; {} of {} tokens in a step ({} tokens), {}\n\
         {} configuration{}, {} of which fit{with_tensor_parallelism}\n{note}",
        model.name,
        billions(model.parameters() as f64),
        counted(model.blocks(), "block"),
        billions(model.multiplying_parameters() as f64),
        cluster.name,
        counted(cluster.nodes, "node"),
        cluster.devices_per_node,
        cluster.device.name,
        bytes(cluster.device.memory),
        counted(workload.global_batch, "sequence"),
        workload.sequence_length,
        count(workload.tokens()),
        workload.dtype.name(),
        count(plan.considered as f64),
        if plan.considered == 1 { "" } else { "s" },
        count(plan.fitting as f64),
    )
}

fn table(evaluations: &[PlanEvaluation]) -> String {
    let mut rows = vec![
        ["", "tokens/s", "MFU", "step", "memory", "configuration", "limited by"].map(String::from).to_vec(),
    ];
    for (at, evaluation) in evaluations.iter().enumerate() {
        rows.push(vec![
            (at + 1).to_string(),
            count(evaluation.tokens_per_second),
            format!("{:.1}%", 100.0 * evaluation.mfu),
            seconds(evaluation.seconds),
            bytes(evaluation.memory.total()),
            evaluation.candidate.label(),
            evaluation.limit(),
        ]);
    }
    aligned(rows).join("\n")
}

fn memory(parts: &crate::memory::MemoryParts) -> String {
    let mut all: Vec<String> = parts
        .parts()
        .iter()
        .filter(|(_, size)| *size > 0)
        .map(|(name, size)| format!("{name} {}", bytes(*size)))
        .collect();
    if parts.host > 0 {
        all.push(format!("on the host {}", bytes(parts.host)));
    }
    all.join(", ")
}

/// Memory and time by part.
pub fn details(workload: &Workload, evaluation: &PlanEvaluation) -> String {
    let parts = evaluation.parts.parts();
    let share = |part: f64| 100.0 * part / evaluation.seconds;
    let time: Vec<String> = parts
        .iter()
        .filter(|(_, part)| share(*part) >= 0.05)
        .map(|(name, part)| format!("{name} {} ({:.1}%)", seconds(*part), share(*part)))
        .collect();
    format!(
        "  memory  of a rank of stage {}: {}; together {} of {} that can be used\n  time    of a step: {}; together {}\n",
        evaluation.fullest_stage,
        memory(&evaluation.memory),
        bytes(evaluation.memory.total()),
        bytes(workload.cluster.usable_memory()),
        time.join(", "),
        seconds(evaluation.seconds),
    )
}

/// What each technique alone would need.
fn alone(workload: &Workload, plan: &Plan) -> String {
    let mut rows = Vec::new();
    for alone in &plan.alone {
        let other = alone.candidate.other_batch(workload.global_batch);
        let other = other.map_or(String::new(), |other| format!(": {other}"));
        let verdict = match &alone.change {
            _ if alone.missing.is_none() && alone.memory.host == 0 => format!("fits{other}"),
            _ if alone.missing.is_none() => format!("fits, with the host{other}"),
            Some(change) => format!("{}; fits with {change}", alone.missing.too_much()),
            None => alone.missing.too_much(),
        };
        rows.push(vec![alone.name.to_owned(), bytes(alone.memory.total()), verdict]);
    }
    format!(
        "Memory per rank with one technique alone, and a micro-batch of one sequence:\n{}\n",
        aligned(rows).join("\n")
    )
}
