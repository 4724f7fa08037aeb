//! Whether a command fits into the GPUs of a job, and how long it trains there.

use anyhow::Context;
use brigade::core::compress::Method;
use brigade::launcher::NprocPerNode;
use brigade::plan::cluster::Cluster;
use brigade::plan::model::ModelShape;
use brigade::plan::report::{NamedModel, details, render};
use brigade::plan::search::{self, Axes, Evaluator};
use brigade::report::counted;
use brigade::{Backend, CollectivesBackend, Resume, RunPlan, StandardFlags, StrategyName, SumOrder};
use brigade_submit::{GpuKind, Job};

use crate::commands::plan::configured::{
    candidate, changed_settings, classifier, restrict, trained, workload,
};
use crate::commands::train::TrainArgs;
use crate::config::Config;
use crate::model_files::model_folder::{configuration_folder, hub_name};

/// How many configurations are shown.
const SHOWN: usize = 3;

/// For how many steps a run of some epochs is priced.
const USUAL_STEPS: u64 = 1000;

/// What is known about a command before it is submitted.
#[derive(Default)]
pub struct Fit {
    /// What the planner says.
    pub text: String,
    /// Why the command would end before it trains.
    pub missing: Vec<String>,
    /// How many hours it trains, if that is known.
    pub hours: Option<f64>,
}

/// The command's own mesh, if it has one and its ranks are known. None also where the configuration is in a file that only the nodes have. What the nodes' program
/// was built for is not known here.
///
/// # Errors
/// What training refuses, as far as it is known here.
pub fn own_mesh(args: &TrainArgs, job: &Job) -> anyhow::Result<Option<RunPlan>> {
    if missing_file(args).is_some() {
        return Ok(None);
    }
    let mut config = args.configured()?;
    config.settings.compute.backend = Backend::Cpu;
    if matches!(config.settings.comm.collectives, CollectivesBackend::Nccl | CollectivesBackend::Mpi) {
        config.settings.comm.collectives = CollectivesBackend::Auto;
        config.settings.comm.order = SumOrder::Tree;
    }
    let per_node = match args.standard.world.nproc_per_node {
        _ if job.gpus > 0 => job.gpus,
        Some(NprocPerNode::Count(count)) => count,
        _ => return Ok(None),
    };
    // An elastic run has the mesh that fits its nodes at each start.
    if args.is_planned() || job.least_nodes.is_some() {
        return Ok(None);
    }
    Ok(Some(config.settings.plan(job.nodes * per_node, config.model.row_length())?))
}

/// The settings, where this machine has the files that they are in, and they can be read; training says what is wrong with others.
pub fn configured_here(args: &TrainArgs) -> Option<Config> {
    missing_file(args).is_none().then(|| args.configured().ok()).flatten()
}

/// Whether the settings cannot be read, though this machine has the files that they are in.
pub fn is_wrong(args: &TrainArgs) -> bool {
    missing_file(args).is_none() && args.configured().is_err()
}

/// What only the nodes have cannot be looked at: a file of settings, or the folder of the run to resume.
fn missing_file(args: &TrainArgs) -> Option<String> {
    let StandardFlags { config, resume, .. } = &args.standard;
    let config = config.as_ref().map(|file| ("--config", file));
    let resumed = match resume {
        Some(Resume::From(folder)) => Some(("--resume", folder)),
        _ => None,
    };
    let missing = config.into_iter().chain(resumed).find(|(_, path)| !path.exists());
    missing.map(|(flag, path)| format!("{flag} {} is not on this machine", path.display()))
}

/// What the planner says about the command on these GPUs, and why it would run out of memory. `run`: the command's own mesh, if it has one; `price`: that of a
/// GPU for an hour.
pub fn fit(args: &TrainArgs, run: Option<&RunPlan>, job: &Job, kind: &GpuKind, price: Option<f64>) -> Fit {
    let planned = match missing_file(args) {
        Some(missing) => Err(anyhow::anyhow!(missing)),
        None => configured(args).and_then(|(config, name)| planned(&config, &name, run, job, kind, price)),
    };
    planned.unwrap_or_else(|error| Fit { text: format!("no plan: {error:#}\n"), ..Fit::default() })
}

/// The settings, with the configuration of a model on the hub in a folder here, and how the plan's command names the model: not at all if the command names no file.
fn configured(args: &TrainArgs) -> anyhow::Result<(Config, String)> {
    let mut config = args.configured()?;
    let path = config.model.path.clone();
    if config.model.is_new() {
        let file = args.standard.config.as_ref().map(|file| file.display().to_string());
        return Ok((config, file.unwrap_or_default()));
    }
    if hub_name(&path).is_some() {
        config.model.path = configuration_folder(&path)?;
    }
    Ok((config, path.display().to_string()))
}

fn planned(
    config: &Config,
    name: &str,
    run: Option<&RunPlan>,
    job: &Job,
    kind: &GpuKind,
    price: Option<f64>,
) -> anyhow::Result<Fit> {
    let on = |nodes: usize| -> anyhow::Result<_> {
        let cluster: Cluster = format!("{nodes}x{}x{}", job.gpus, kind.name).parse()?;
        workload(config, model(config)?, cluster)
    };
    let (settings, train) = (&config.settings, &config.settings.train);
    let axes = restrict(Axes::default(), settings);
    let workload = on(job.nodes)?;
    let mut plan = search::plan(&workload, &axes, SHOWN)?;
    plan.best.iter_mut().for_each(|best| best.candidate = trained(best.candidate, settings));
    let named = NamedModel {
        name: name.to_owned(),
        settings: changed_settings(settings),
        is_compressed: settings.comm.compress != Method::None,
        lora_rank: (config.lora.rank > 0).then_some(config.lora.rank),
    };
    let mut fit = Fit { text: render(&workload, &plan, &named), ..Fit::default() };
    // Other strategies need other memory, which the planner does not know.
    let own = match run.filter(|_| settings.strategy.name == StrategyName::Sync) {
        Some(run) => {
            Some(Evaluator::new(&workload).evaluate(&candidate(settings, |axis| run.mesh.size(axis))?)?)
        }
        None => None,
    };
    let chosen = own.as_ref().or(plan.best.first());
    let chosen_seconds = chosen.map(|chosen| chosen.seconds);
    if let Some(own) = &own {
        fit.text.push_str(&format!("\nThe command as it is, {}:\n", own.candidate.label()));
        fit.text.push_str(&details(&workload, own));
        let lacking = Evaluator::new(&workload).missing(&own.memory);
        if !lacking.is_none() {
            let text = lacking.text();
            fit.missing.push(format!("{text}, for the command as it is; the plans above fit"));
        }
    }
    if plan.best.is_empty() && fit.missing.is_empty() {
        fit.missing.push("a configuration that fits".into());
    }
    if let Some(chosen) = chosen {
        let (steps, note) = match train.steps {
            0 => (USUAL_STEPS, "; how many an epoch has follows from the data"),
            steps => (steps, ""),
        };
        let hours = chosen.seconds * steps as f64 / 3600.0;
        fit.hours = (train.steps > 0).then_some(hours);
        let gpu_hours = hours * (job.nodes * job.gpus) as f64;
        fit.text.push_str(&format!(
            "{}: {hours:.1} hours {}, {gpu_hours:.0} GPU hours{note}\n",
            counted(steps as usize, "step"),
            if own.is_some() { "as it is" } else { "with the first plan" }
        ));
        fit.text.push_str(&cost(gpu_hours, price));
    }
    if let Some(least) = job.least_nodes.filter(|least| *least < job.nodes) {
        // An elastic run goes on with as few.
        match search::plan(&on(least)?, &axes, 1)?.best.first() {
            Some(best) => fit.text.push_str(&format!(
                "with {}, while the others are missing: {}, steps {:.1} times as long\n",
                counted(least, "node"),
                trained(best.candidate, settings).label(),
                best.seconds / chosen_seconds.unwrap_or(best.seconds)
            )),
            None => fit.missing.push(format!(
                "a configuration that fits {}, with which the run would go on (--nodes {least}:{})",
                counted(least, "node"),
                job.nodes
            )),
        }
    }
    Ok(fit)
}

/// Of the time of training alone: waiting, saving and restarts are paid for, too.
fn cost(gpu_hours: f64, price: Option<f64>) -> String {
    match price {
        Some(price) => {
            format!(
                "cost: {:.2} for these GPU hours at {price} each, besides start, saving and restarts\n",
                gpu_hours * price
            )
        }
        None => "cost: give the price that you pay with --price-per-gpu-hour\n".into(),
    }
}

fn model(config: &Config) -> anyhow::Result<ModelShape> {
    let path = &config.model.path;
    if !config.model.is_new() {
        anyhow::ensure!(path.exists(), "--model {} is not on this machine", path.display());
        return classifier(config).map_or_else(|| Ok(ModelShape::read(path)?), Ok);
    }
    if !config.model.config.is_empty() {
        let fields = serde_json::to_value(&config.model.config)?.as_object().cloned().unwrap_or_default();
        let tokens = config.largest_token_count().context("the tokenizer's size")?;
        return Ok(ModelShape::of_fields("[model.config]", fields, Some(tokens))?);
    }
    let shape = &config.model.shape;
    let vocabulary = match shape.vocabulary {
        0 => config.largest_token_count().context("the tokenizer's size")?,
        given => given,
    };
    let model = ModelShape::gpt(
        "the model of the settings",
        shape.layers,
        shape.width,
        shape.heads,
        vocabulary,
        shape.sequence_length,
    );
    let model = if shape.tied_head { model } else { model.untied() };
    Ok(model.check("[model]")?)
}
