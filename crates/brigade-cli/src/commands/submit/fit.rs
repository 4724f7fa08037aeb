//! Whether a model fits into the GPUs of a job, and how long it trains there.

use anyhow::Context;
use brigade::plan::cluster::Cluster;
use brigade::plan::model::ModelShape;
use brigade::plan::report::render;
use brigade::plan::search::{Axes, Workload, plan};
use brigade::report::counted;
use brigade_submit::{GpuKind, Job};

use crate::commands::train::TrainArgs;
use crate::config::Config;

/// How many configurations are shown.
const SHOWN: usize = 3;

/// What the planner says about the command on these GPUs, and whether any configuration fits, as far as is known here. `price` is that of a GPU for
/// an hour.
pub fn fit(args: &TrainArgs, job: &Job, kind: &GpuKind, price: Option<f64>) -> (String, bool) {
    planned(args, job, kind, price).unwrap_or_else(|error| (format!("no plan: {error:#}\n"), true))
}

fn planned(
    args: &TrainArgs,
    job: &Job,
    kind: &GpuKind,
    price: Option<f64>,
) -> anyhow::Result<(String, bool)> {
    let config = args.configured()?;
    let (model, name) = model(&config)?;
    let cluster: Cluster = format!("{}x{}x{}", job.nodes, job.gpus, kind.name).parse()?;
    let train = &config.settings.train;
    let length = config.model.shape.sequence_length;
    let workload = Workload::new(model, cluster, length, train.global_batch_size);
    let plan = plan(&workload, &Axes::default(), SHOWN)?;
    let mut text = render(&workload, &plan, &name);
    if let Some(best) = plan.best.first().filter(|_| train.steps > 0) {
        let hours = best.seconds * train.steps as f64 / 3600.0;
        let gpu_hours = hours * (job.nodes * job.gpus) as f64;
        text.push_str(&format!(
            "{}: {hours:.1} hours with the first plan, {gpu_hours:.0} GPU hours\n",
            counted(train.steps as usize, "step")
        ));
        text.push_str(&cost(gpu_hours, price));
    }
    let fits = !plan.best.is_empty();
    Ok((text, fits))
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

/// The model, and how the plan's command names it.
fn model(config: &Config) -> anyhow::Result<(ModelShape, String)> {
    let path = &config.model.path;
    if !path.as_os_str().is_empty() {
        anyhow::ensure!(
            path.exists(),
            "--model {} is not on this machine; brigade plan --model downloads what it needs",
            path.display()
        );
        return Ok((ModelShape::read(path)?, path.display().to_string()));
    }
    if !config.model.config.is_empty() {
        let fields = serde_json::to_value(&config.model.config)?.as_object().cloned().unwrap_or_default();
        let tokens = config.largest_token_count().context("the tokenizer's size")?;
        let model = ModelShape::of_fields("[model.config]", fields, Some(tokens))?;
        return Ok((model, "my.toml".into()));
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
    Ok((model.check("[model]")?, "my.toml".into()))
}
