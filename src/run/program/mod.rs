//! A training program as its command line describes it.

pub(crate) mod launch;
pub(crate) mod own_flags;
pub(crate) mod start;

use brigade_launch::{Detected, NodeInfo, NprocPerNode, Source, StandardStreams, server_nodes};

use crate::device;
use crate::error::UsageError;
use crate::run::auto::Chosen;
use crate::run::ranks::Ranks;
use crate::settings::{RunPlan, SettingError, Settings, StandardFlags};

/// The role of a process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It starts the ranks of a node and supervises them.
    Launcher,
    /// It is a rank that Brigade's launcher started; the launcher has prepared everything already.
    LaunchedRank,
    /// It is a rank that another launcher started (torchrun, Slurm, MPI, …).
    JoinedRank {
        /// Its rank in the world.
        rank: usize,
    },
}

/// A training program: its name, flags and settings, and what is known of its model before a rank starts.
/// [`Program::run`] starts the ranks, or is one of them; [`launch`](crate::launch) does all of it for a model of your own.
pub struct Program<'a> {
    /// Its name, used for the folder of results if none is given.
    pub name: &'a str,
    /// The standard flags.
    pub flags: &'a StandardFlags,
    /// The settings, with the flags applied.
    pub settings: &'a Settings,
    /// The whole resolved configuration as TOML, which must be the same on all ranks.
    pub config: String,
    /// Targets in one sample (the sequence length), which turns a warm-up in tokens into one in steps.
    pub targets_per_sample: usize,
    /// Relative costs of the model's blocks, or empty if unknown. With them, the split into pipeline stages is checked before a
    /// rank starts.
    pub costs: Vec<f64>,
    /// What rank 0 has for standard input and output.
    pub streams: StandardStreams,
    /// What was chosen for the run, where its command line left something open.
    pub chosen: Option<&'a Chosen>,
}

impl Program<'_> {
    /// Whether this process is a node's launcher or a rank, from flags and environment.
    pub(crate) fn detect(&self) -> anyhow::Result<Detected> {
        let detected = brigade_launch::detect(&self.flags.world, &environment)?;
        let servers = match detected.source() {
            Source::TfConfig => server_nodes(&environment),
            _ => 0,
        };
        let (given, per_node) = (self.settings.strategy.resolved_servers(), self.flags.world.nproc_per_node);
        let tasks = servers.saturating_mul(per_node.map_or(1, NprocPerNode::resolve));
        if servers > 0 && given > 0 && given != tasks {
            let allowed = format!("the ps tasks of TF_CONFIG are the servers; set {tasks}, or leave it out");
            return Err(SettingError::new("strategy.servers (--servers)", given, allowed).into());
        }
        if servers > 0 && given == 0 {
            let allowed = "TF_CONFIG has ps tasks, which only async-server uses; set --strategy async-server, or leave them out of TF_CONFIG";
            let given = self.settings.strategy.name;
            return Err(SettingError::new("strategy.name (--strategy)", given, allowed).into());
        }
        Ok(detected)
    }

    /// The ranks that there will be.
    ///
    /// # Errors
    /// If flags and environment contradict each other, or the backend finds no device.
    pub fn ranks(&self) -> anyhow::Result<Ranks> {
        Ok(match self.detect()? {
            Detected::Node(node) => {
                Ranks { nodes: node.nnodes, per_node: self.ranks_per_node(&node)?, is_launcher: true }
            }
            Detected::Rank(info) => {
                let per_node = info.local_world_size.max(1);
                Ranks { nodes: info.world_size.div_ceil(per_node), per_node, is_launcher: false }
            }
        })
    }

    /// Ranks on each node: as given, or as many as the mesh needs, or one per core or GPU as far as stages and batch divide, but at
    /// least one rank per stage.
    pub(crate) fn ranks_per_node(&self, node: &NodeInfo) -> anyhow::Result<usize> {
        let Settings { mesh, train, .. } = self.settings;
        if let Some(ranks) = node.nproc_per_node {
            return Ok(ranks);
        }
        // A task of `TF_CONFIG` is a worker or a server.
        if node.source == Source::TfConfig && server_nodes(&environment) > 0 {
            return Ok(1);
        }
        let strategy = &self.settings.strategy;
        if let Some(separate) = strategy.separate_worlds() {
            let ranks = if separate.is_server { strategy.resolved_servers() } else { 1 };
            return Ok(ranks.div_ceil(node.nnodes));
        }
        let (workers, has_workers) = (strategy.workers, strategy.has_workers() && !strategy.is_elastic());
        let pp = mesh.pp.max(1) * if has_workers { workers.max(1) } else { 1 };
        let servers = self.settings.strategy.resolved_servers();
        let fits = |ranks: &usize| {
            let world = (ranks * node.nnodes).saturating_sub(servers);
            let (_, launches) = strategy.place_among_launches();
            let samples = (world / pp).saturating_mul(train.micro_batch_size).saturating_mul(launches);
            world.is_multiple_of(pp) && samples > 0 && train.global_batch_size.is_multiple_of(samples)
        };
        let is_open = mesh.dp == 0 || has_workers && workers == 0;
        Ok(match mesh.dp.saturating_mul(pp) {
            _ if is_open => {
                let most = device::most_ranks_per_node(self.settings.compute.backend)?;
                (1..=most).rev().find(fits).unwrap_or((pp + servers).div_ceil(node.nnodes))
            }
            ranks => (ranks + servers).div_ceil(node.nnodes),
        })
    }

    /// Checks the settings for a world of this size, and the split into stages and fragments if costs are known.
    pub(crate) fn plan(&self, world: usize) -> anyhow::Result<RunPlan> {
        let plan = self.settings.plan(world, self.targets_per_sample)?;
        if !self.costs.is_empty() {
            plan.split(&self.costs)?;
            let strategy = &plan.engine.strategy;
            if let Some((fragments, inner_steps)) = strategy.fragments().zip(strategy.inner_steps()) {
                fragments.check(inner_steps, Some(self.costs.len()))?;
            }
        }
        Ok(plan)
    }
}

pub(crate) fn usage(error: anyhow::Error) -> anyhow::Error {
    UsageError(error).into()
}

pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
