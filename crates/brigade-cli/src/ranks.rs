//! Ranks that run a model without training it, and leave no folder of a run behind.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use brigade::launcher::{Detected, LaunchArgs, Source, StandardStreams, detect};
use brigade::{
    Backend, CollectivesBackend, Program, Role, Session, Settings, StandardFlags, Transport, exit,
    most_ranks_per_node, parse_transport, parse_whole_number,
};
use clap::Args;
use tempfile::TempDir;

/// How ranks are started, and their pipeline.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ranks")]
pub struct RankFlags {
    /// What ranks compute on [default: the best backend that the program was built for].
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// What runs the collectives [default: NCCL on CUDA, else host].
    #[arg(long, value_enum)]
    collectives: Option<CollectivesBackend>,
    /// Pipeline stages.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    pub pp: Option<usize>,
    /// What carries bytes between ranks.
    #[arg(long, value_parser = parse_transport())]
    transport: Option<Transport>,
    /// Network interfaces by which ranks of different hosts send each other data, as the setting comm.interfaces: eth0,eth1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// Last, as its heading would be that of all flags after it.
    #[command(flatten)]
    world: LaunchArgs,
}

/// What runs on the ranks.
pub struct RankProgram<'a> {
    pub name: &'a str,
    pub flags: &'a RankFlags,
    pub settings: Settings,
    /// As TOML; the same on all ranks.
    pub config: String,
    /// Of the model's blocks.
    pub costs: Vec<f64>,
    pub quiet: bool,
    /// `Results`, or `Dialogue`.
    pub streams: StandardStreams,
}

impl RankFlags {
    /// Whether to start or join ranks.
    pub fn are_given(&self) -> bool {
        self.first_given().is_some()
    }

    /// The first of these flags that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        let Self { backend, collectives, pp, transport, interfaces, world } = self;
        let given = [
            (backend.is_some(), "--backend"),
            (collectives.is_some(), "--collectives"),
            (pp.is_some(), "--pp"),
            (transport.is_some(), "--transport"),
            (!interfaces.is_empty(), "--interfaces"),
            (world.nproc_per_node.is_some(), "--nproc-per-node"),
            (world.nnodes.is_some(), "--nnodes"),
            (*world != LaunchArgs::default(), "a flag about ranks"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, flag)| flag)
    }

    /// Overrides settings.
    pub fn apply(&self, settings: &mut Settings) {
        settings.compute.backend = self.backend.unwrap_or(settings.compute.backend);
        settings.comm.collectives = self.collectives.unwrap_or(settings.comm.collectives);
        settings.comm.transport = self.transport.unwrap_or(settings.comm.transport);
        if !self.interfaces.is_empty() {
            settings.comm.interfaces.clone_from(&self.interfaces);
        }
        settings.mesh.pp = self.pp.unwrap_or(settings.mesh.pp);
        if let Some(timeout) = self.world.host_timeout {
            settings.comm.host_timeout_seconds = timeout.as_secs_f64();
        }
    }

    /// The number of ranks: from flags or the environment, or else this many; none: one per core or GPU.
    pub fn world_size(&self, wanted: Option<usize>, backend: Backend) -> anyhow::Result<usize> {
        match self.detected()? {
            Detected::Rank(info) => Ok(info.world_size),
            Detected::Node(node) => {
                let per_node = match (node.nproc_per_node, wanted) {
                    (Some(ranks), _) => ranks,
                    (None, Some(wanted)) => wanted.div_ceil(node.nnodes),
                    (None, None) => most_ranks_per_node(backend)?,
                };
                Ok(per_node.saturating_mul(node.nnodes))
            }
        }
    }

    /// The flag that would start ranks again, if one was given.
    pub fn restarts(&self) -> Option<String> {
        let LaunchArgs { max_restarts, nnodes, .. } = &self.world;
        let elastic = nnodes.filter(|nodes| nodes.least < nodes.most);
        let restarts = max_restarts.filter(|times| *times > 0).map(|times| format!("--max-restarts {times}"));
        restarts.or_else(|| elastic.map(|nodes| format!("--nnodes {nodes}")))
    }

    /// As [`checks_for_all`], with these flags.
    pub fn checks_for_all(&self) -> anyhow::Result<bool> {
        checks_for_all(&self.world)
    }

    fn detected(&self) -> anyhow::Result<Detected> {
        detected(&self.world)
    }
}

fn detected(world: &LaunchArgs) -> anyhow::Result<Detected> {
    Ok(detect(world, &|name: &str| std::env::var(name).ok())?)
}

/// Whether this process makes the checks that read much of a file and need be made once: it starts ranks, or is the first of those that another launcher started.
pub fn checks_for_all(world: &LaunchArgs) -> anyhow::Result<bool> {
    Ok(is_first(&detected(world)?))
}

fn is_first(process: &Detected) -> bool {
    match process {
        Detected::Node(_) => true,
        // Brigade's launcher has made them.
        Detected::Rank(info) => info.source != Source::Brigade && info.rank == 0,
    }
}

impl RankProgram<'_> {
    /// Starts the ranks, or is one of them: see [`Program::run`]. Logs are in a temporary folder, which is kept if a rank fails.
    pub fn run<P>(
        mut self,
        prepare: impl FnOnce(Role) -> anyhow::Result<P>,
        body: impl FnOnce(&mut Session, P) -> anyhow::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        let logs = self.logs()?;
        if let Some(logs) = &logs {
            self.settings.output.dir = logs.path().to_owned();
        }
        let world = self.flags.world.clone();
        let flags = StandardFlags { world, quiet: self.quiet, ..StandardFlags::default() };
        let program = Program {
            name: self.name,
            flags: &flags,
            settings: &self.settings,
            config: self.config,
            targets_per_sample: 1,
            costs: self.costs,
            streams: self.streams,
            chosen: None,
        };
        let code = program.run(prepare, body);
        if let Some(logs) = logs.filter(|_| code == ExitCode::from(exit::FAILED)) {
            let _: PathBuf = logs.keep();
        }
        Ok(code)
    }

    /// The folder of logs; none for a rank started by Brigade's launcher, which gives it one.
    fn logs(&self) -> anyhow::Result<Option<TempDir>> {
        if matches!(self.flags.detected()?, Detected::Rank(info) if info.source == Source::Brigade) {
            return Ok(None);
        }
        let folder = tempfile::Builder::new().prefix("brigade-").tempdir();
        folder.map(Some).context("cannot create a temporary folder for logs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_checked_by_one_process() {
        let is_first = |set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
            is_first(&detect(&LaunchArgs::default(), &value).unwrap())
        };
        let rank = |rank| [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "9")];
        assert!(is_first(&[]) && is_first(&rank("0")) && !is_first(&rank("1")));
        assert!(!is_first(&[&rank("0")[..], &[("BRIGADE_LAUNCHED", "1")]].concat()));
    }
}
