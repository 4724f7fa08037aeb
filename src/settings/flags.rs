//! The flags that every program of Brigade takes.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use brigade_core::compress::Method;
use brigade_core::plan::PipelineScheduleKind;
use brigade_launch::{LaunchArgs, NprocPerNode};
use brigade_report::LogFormat;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::error::format_error;
use crate::object_results;

use super::{Backend, CONFIG_FILE, CollectivesBackend, SettingError, Settings, StrategyName, Transport};

/// What `--resume` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The run in `--out`, where there is one.
    Auto,
    /// The run in this folder.
    From(PathBuf),
}

impl FromStr for Resume {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "auto" { Self::Auto } else { Self::From(text.into()) })
    }
}

/// What `--micro-batch-size` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroBatchSize {
    /// The fastest size that fits.
    Auto,
    /// This many samples.
    Samples(usize),
}

impl FromStr for MicroBatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => parse_whole_number(text).map(Self::Samples),
        }
    }
}

/// Parses a whole number given to a flag; the error says what is allowed. The flag needs `allow_negative_numbers`, otherwise
/// clap takes a negative number for another flag.
///
/// # Errors
/// If the text is not a whole number of at least 0, or too large for the type.
pub fn parse_whole_number<T: FromStr>(text: &str) -> Result<T, String> {
    let is_whole = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let allowed = if is_whole { "it is too large" } else { "it must be a whole number of at least 0" };
    text.parse().map_err(|_| allowed.into())
}

/// The values of `--transport`.
pub fn parse_transport() -> impl TypedValueParser<Value = Transport> {
    const VALUES: [(Transport, &str, &str); 3] = [
        (Transport::Auto, "auto", "Shared memory between processes of one host, TCP between hosts"),
        (Transport::SharedMemory, "shared_memory", "Shared memory only"),
        (Transport::Tcp, "tcp", "TCP only"),
    ];
    let possible = VALUES.map(|(transport, name, help)| {
        let value = PossibleValue::new(name).help(help);
        if transport == Transport::SharedMemory { value.alias("shm") } else { value }
    });
    PossibleValuesParser::new(possible).map(|name| {
        let named = VALUES.into_iter().find(|(_, known, _)| *known == name);
        named.map_or(Transport::SharedMemory, |(transport, _, _)| transport)
    })
}

/// The standard flags. A flag overrides the setting that it stands for.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Training")]
pub struct StandardFlags {
    /// TOML file with settings, over the program's own defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What ranks compute on [default: the best backend that the program was built for].
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// What runs the collectives [default: NCCL on CUDA, else host, which is hierarchical with ranks on several hosts].
    #[arg(long, value_enum)]
    pub collectives: Option<CollectivesBackend>,
    /// Compress gradients between data-parallel ranks: none, bf16, fp16, int8, int4, powersgd, topk, randomk or onebit
    /// [default: none].
    #[arg(long, value_name = "METHOD")]
    pub compress: Option<Method>,
    /// Data-parallel ranks [default: all ranks].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub dp: Option<usize>,
    /// Replicas of what --zero shards, each on neighbouring ranks, such as those of one node [default: 1].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub replicate: Option<usize>,
    /// Update strategy: all ranks together (sync), local updates with periodic synchronisation (local-sgd, diloco), or parameter servers
    /// (async-server) [default: sync].
    #[arg(long, value_enum)]
    pub strategy: Option<StrategyName>,
    /// Workers of local-sgd and diloco, each a mesh of --pp x --dp ranks, or of async-server, each a rank [default: as many as the ranks allow].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub workers: Option<usize>,
    /// With local-sgd and diloco: address of the coordinator (`brigade coordinate`) for separately launched workers, which may leave, join late or
    /// rejoin. With async-server: address of the servers (--listen) this worker connects to.
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<String>,
    /// With async-server: all ranks of this launch are servers, and listen here for separately launched workers (--coordinator).
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// With --coordinator: the number of this worker, below --workers [default: 0].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub worker: Option<usize>,
    /// Servers of async-server, which are the last ranks [default: 1, or the number in TF_CONFIG].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub servers: Option<usize>,
    /// Steps by which a worker of async-server may take newer parameters than the slowest still computes with; gradients are late by less
    /// than two steps more. 0 is synchronous [default: 0].
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    pub staleness: Option<u64>,
    /// Updates of a worker between outer steps, in which workers synchronise; with async-server and a staleness above 0, the steps of a round, at
    /// whose end all ranks wait for each other [default: 50].
    #[arg(long, value_name = "H", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    pub inner_steps: Option<u64>,
    /// Fragments of the model that diloco synchronises, one at a time [default: 1].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub fragments: Option<usize>,
    /// Inner steps of diloco's workers while outer gradients are sent [default: 0].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    pub overlap_steps: Option<u64>,
    /// Pipeline stages [default: 1].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub pp: Option<usize>,
    /// What is sharded over data-parallel ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too
    /// [default: 0].
    #[arg(long, value_name = "STAGE", allow_negative_numbers = true, value_parser = parse_whole_number::<u8>)]
    pub zero: Option<u8>,
    /// Pipeline schedule: gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-h2 or zbv [default: 1f1b].
    #[arg(long, value_name = "NAME")]
    pub schedule: Option<PipelineScheduleKind>,
    /// Model chunks per pipeline stage, for interleaving [default: 1, or 2 with --schedule zbv].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub chunks: Option<usize>,
    /// Activation checkpointing: blocks to recompute in the backward pass: none, all, every-2, … [default: none].
    #[arg(long, value_name = "WHICH")]
    pub recompute: Option<String>,
    /// What carries bytes between ranks.
    #[arg(long, value_parser = parse_transport())]
    pub transport: Option<Transport>,
    /// Steps: passes over a global batch.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    pub steps: Option<u64>,
    /// Length of the run in epochs instead of steps: passes over the data, as in 2.5.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub epochs: Option<f64>,
    /// Samples that a rank puts through the model at once; `auto` tries sizes for two steps each before the run begins, and takes
    /// the fastest that fits.
    #[arg(long, value_name = "N|auto", allow_negative_numbers = true)]
    pub micro_batch_size: Option<MicroBatchSize>,
    /// Samples per step, over all ranks.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub global_batch_size: Option<usize>,
    /// Steps from one update to the next; steps without an update only add up gradients.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub sync_every: Option<usize>,
    /// Seed of the initial weights and of the order of data [default: 0].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    pub seed: Option<u64>,
    /// Steps between checkpoints; 0 saves only on preemption (SIGTERM, SIGUSR1), and the best ones if the run keeps them
    /// [default: 100].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    pub checkpoint_every: Option<u64>,
    /// How many of the newest checkpoints to keep; 0 keeps all [default: 3].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub keep: Option<usize>,
    /// Folder for results, or the URL that they are copied to, gs:// or s3:// [default: a new folder under runs/].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write a timeline of these steps, as in 10..12: what each rank did when, for Perfetto and `brigade inspect timeline`.
    #[arg(long, value_name = "STEPS")]
    pub profile_steps: Option<String>,
    /// Peak TFLOP/s of one device, for MFU [default: from a table, by the device's name].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub peak_tflops: Option<f64>,
    /// Serve the last step to Prometheus at /metrics: a port on rank 0's machine only, or ADDRESS:PORT [default: off].
    #[arg(long, value_name = "PORT|ADDRESS:PORT")]
    pub metrics_addr: Option<String>,
    /// Replace earlier results in --out.
    #[arg(long)]
    pub overwrite: bool,
    /// Resume the run in this folder, or with this URL, from its newest checkpoint, with its configuration, on the same mesh or another.
    /// `auto`: the run in --out, if there is one.
    #[arg(long, value_name = "DIR|auto", conflicts_with = "overwrite")]
    pub resume: Option<Resume>,
    /// Override any setting by its full name; can be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub sets: Vec<String>,
    /// Print nothing but errors.
    #[arg(long, short)]
    pub quiet: bool,
    /// Format of lines on standard error: text, or json with one object per line.
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
    /// Print the resolved configuration, the mesh and the parameters per block, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// How ranks are started or found. Last, as its heading would be that of all flags after it.
    #[command(flatten)]
    pub world: LaunchArgs,
}

impl StandardFlags {
    /// The files of settings, later over earlier ones: the configuration of the run to resume, and the file of `--config`.
    ///
    /// # Errors
    /// If there is no such run, its bucket does not answer, or `--out` names another folder.
    pub fn config_files(&self) -> Result<Vec<PathBuf>, SettingError> {
        let wrong = |given: &Path, allowed: String| SettingError::new("--resume", given.display(), allowed);
        let resumed = match &self.resume {
            Some(Resume::From(dir)) => {
                if let Some(out) = self.out.as_ref().filter(|out| *out != dir) {
                    let allowed =
                        format!("a run resumes in its own folder; leave out --out {}", out.display());
                    return Err(wrong(dir, allowed));
                }
                let folder = object_results::with_files(dir, &[CONFIG_FILE]);
                let file = folder.map_err(|error| wrong(dir, format_error(&error)))?.join(CONFIG_FILE);
                if !file.exists() {
                    let allowed = format!("it must be the folder of a run; it holds no {CONFIG_FILE}");
                    return Err(wrong(dir, allowed));
                }
                Some(file)
            }
            Some(Resume::Auto) if self.out.is_none() => {
                Err(SettingError::Missing { option: "--resume auto", needed: "--out" })?
            }
            _ => None,
        };
        Ok(resumed.into_iter().chain(self.config.clone()).collect())
    }

    /// Overrides settings by the flags.
    ///
    /// # Errors
    /// If a number is too large. Files cannot have such numbers, and could not be written with them.
    pub fn apply(&self, settings: &mut Settings) -> Result<(), SettingError> {
        fn lay<T: Clone>(flag: &Option<T>, setting: &mut T) {
            if let Some(value) = flag {
                *setting = value.clone();
            }
        }
        lay(&self.backend, &mut settings.compute.backend);
        lay(&self.collectives, &mut settings.comm.collectives);
        lay(&self.compress, &mut settings.comm.compress);
        lay(&self.dp, &mut settings.mesh.dp);
        lay(&self.replicate, &mut settings.mesh.replicate);
        lay(&self.strategy, &mut settings.strategy.name);
        lay(&self.workers, &mut settings.strategy.workers);
        lay(&self.coordinator, &mut settings.strategy.coordinator);
        lay(&self.listen, &mut settings.strategy.listen);
        lay(&self.worker, &mut settings.strategy.worker);
        lay(&self.servers, &mut settings.strategy.servers);
        lay(&self.staleness, &mut settings.strategy.staleness);
        let server_nodes = brigade_launch::server_nodes(&|name| std::env::var(name).ok());
        if settings.strategy.name == StrategyName::AsyncServer && settings.strategy.servers == 0 {
            let per_node = self.world.nproc_per_node.map_or(1, NprocPerNode::resolve);
            settings.strategy.servers = server_nodes.saturating_mul(per_node);
        }
        lay(&self.inner_steps, &mut settings.strategy.inner_steps);
        lay(&self.fragments, &mut settings.strategy.fragments);
        lay(&self.overlap_steps, &mut settings.strategy.overlap_steps);
        lay(&self.pp, &mut settings.mesh.pp);
        lay(&self.zero, &mut settings.zero.stage);
        lay(&self.schedule, &mut settings.pipeline.schedule);
        let may_have_two_chunks =
            self.chunks.is_none() && settings.pipeline.chunks == 1 && settings.mesh.pp > 1;
        if self.schedule == Some(PipelineScheduleKind::Zbv) && may_have_two_chunks {
            settings.pipeline.chunks = 2;
        }
        lay(&self.chunks, &mut settings.pipeline.chunks);
        lay(&self.recompute, &mut settings.compute.recompute);
        lay(&self.transport, &mut settings.comm.transport);
        // One of them replaces both, but that there is no number of epochs says nothing of steps.
        if self.steps.is_some() || self.epochs.is_some_and(|epochs| epochs != 0.0) {
            settings.train.steps = self.steps.unwrap_or(0);
        }
        if self.steps.is_some() || self.epochs.is_some() {
            settings.train.epochs = self.epochs.unwrap_or(0.0);
        }
        if let Some(MicroBatchSize::Samples(samples)) = self.micro_batch_size {
            settings.train.micro_batch_size = samples;
        }
        lay(&self.global_batch_size, &mut settings.train.global_batch_size);
        lay(&self.sync_every, &mut settings.train.sync_every);
        lay(&self.seed, &mut settings.train.seed);
        lay(&self.checkpoint_every, &mut settings.checkpoint.every);
        lay(&self.keep, &mut settings.checkpoint.keep);
        lay(&self.out, &mut settings.output.dir);
        settings.output.check_is_text()?;
        lay(&self.profile_steps, &mut settings.profile.steps);
        lay(&self.peak_tflops, &mut settings.output.peak_tflops);
        lay(&self.metrics_addr, &mut settings.output.metrics_addr);
        if let Some(timeout) = self.world.host_timeout {
            settings.comm.host_timeout_seconds = timeout.as_secs_f64();
        }
        settings.resolve();
        if let Some(Resume::From(dir)) = &self.resume {
            settings.output.dir.clone_from(dir);
        }
        settings.output.overwrite |= self.overwrite;
        settings.check_sizes()
    }
}
