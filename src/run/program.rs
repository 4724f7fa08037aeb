//! A program that trains, as its command line describes it.

use brigade_core::plan::{CutTensor, Inside};
use brigade_launch::{Detected, NodeInfo};

use crate::device;
use crate::error::Usage;
use crate::settings::{Plan, Settings, StandardFlags};

/// What a process is in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It starts the ranks of a node and watches over them.
    Launcher,
    /// It is a rank that Brigade's launcher started: the launcher has prepared everything already.
    LaunchedRank,
    /// It is a rank that somebody else started (torchrun, Slurm, MPI, …).
    JoinedRank {
        /// Its number in the world.
        rank: usize,
    },
}

/// A run as the command line describes it.
pub struct Program<'a> {
    /// Its name, for the folder of results where none is given.
    pub name: &'a str,
    /// The standard flags.
    pub flags: &'a StandardFlags,
    /// The settings, flags laid over.
    pub settings: &'a Settings,
    /// The whole resolved configuration as TOML; all ranks must have the same.
    pub config: String,
    /// Targets in one sample (sequence length), to turn a warm-up in tokens into steps.
    pub targets_per_sample: usize,
    /// Relative costs of the model's blocks, where they are known before a rank starts: whether they can be
    /// cut into stages as the settings say is then checked before, too.
    pub costs: Vec<f64>,
    /// The tensors that go into each block, where they are known, to say what they take.
    pub cuts: Vec<Vec<CutTensor>>,
    /// What each block needs inside, and the loss, where that is known.
    pub insides: Vec<Inside>,
}

impl Program<'_> {
    pub(super) fn detected(&self) -> anyhow::Result<Detected> {
        Ok(brigade_launch::detect(&self.flags.world, &environment)?)
    }

    /// Ranks on each node: as told, or to fill the mesh, or one per core or GPU as far as stages and batch divide, but enough
    /// for one rank a stage.
    pub(super) fn ranks_per_node(&self, node: &NodeInfo) -> anyhow::Result<usize> {
        let Settings { mesh, train, .. } = self.settings;
        if let Some(ranks) = node.nproc_per_node {
            return Ok(ranks);
        }
        let pp = mesh.pp.max(1);
        let fits = |ranks: &usize| {
            let world = ranks * node.nnodes;
            let samples = (world / pp).saturating_mul(train.micro_batch_size);
            world.is_multiple_of(pp) && samples > 0 && train.global_batch_size.is_multiple_of(samples)
        };
        Ok(match mesh.dp.saturating_mul(mesh.pp) {
            0 => {
                let room = device::room(self.settings.compute.backend)?;
                (1..=room).rev().find(fits).unwrap_or(pp.div_ceil(node.nnodes))
            }
            ranks => ranks.div_ceil(node.nnodes),
        })
    }

    pub(super) fn plan(&self, world: usize) -> anyhow::Result<Plan> {
        let plan = self.settings.plan(world, self.targets_per_sample)?;
        if !self.costs.is_empty() {
            plan.split(&self.costs)?;
        }
        Ok(plan)
    }
}

pub(super) fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(error).into()
}

pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
