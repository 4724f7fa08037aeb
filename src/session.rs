//! One rank's part in a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_comm::Group;
use brigade_core::plan::CutTensor;
use brigade_core::{Collectives, Groups};
use brigade_launch::interrupt::Interrupt;
use burn::tensor::Device;

use crate::program::Program;
use crate::settings::{Plan, Settings};

/// A signal ended the run.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// The run was described, not run.
#[derive(Debug, thiserror::Error)]
#[error("dry run")]
pub(crate) struct DryRun;

/// A rank in its world, ready to train.
pub struct Session {
    group: Group,
    groups: Groups,
    device: Device,
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) out: PathBuf,
    pub(crate) world: String,
    pub(crate) quiet: bool,
    /// The whole resolved configuration, as TOML.
    pub(crate) config: String,
    /// The tensors that go into each block, where they are known.
    pub(crate) cuts: Vec<Vec<CutTensor>>,
    /// Whether the run is only to be described.
    pub(crate) dry: bool,
    interrupt: Interrupt,
}

impl Session {
    /// A rank of the plan's mesh, or a process that is alone and only describes the run.
    pub(crate) fn new(
        program: &Program<'_>,
        group: Group,
        plan: Plan,
        out: PathBuf,
        world: String,
        interrupt: Interrupt,
    ) -> brigade_comm::Result<Self> {
        Ok(Self {
            groups: brigade_cpu::groups(&group, plan.mesh)?,
            group,
            device: brigade_cpu::device(),
            settings: program.settings.clone(),
            plan,
            out,
            world,
            quiet: program.flags.quiet,
            config: program.config.clone(),
            cuts: program.cuts.clone(),
            dry: false,
            interrupt,
        })
    }

    pub(crate) fn describe_only(&mut self) {
        self.dry = true;
    }

    /// This rank's number in the world.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Number of ranks in the world.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// The device that this rank's model is to be built for.
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.settings.train.seed
    }

    /// All settings, resolved.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The folder of the run's results; only rank 0 writes there.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// The world's group, for communication of your own.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The world's collectives over tensors.
    pub fn collectives(&self) -> Arc<dyn Collectives> {
        self.groups.world.clone()
    }

    /// This rank's groups along the axes of the mesh.
    pub(crate) fn groups(&self) -> Groups {
        self.groups.clone()
    }

    /// Checks that `text` is the same on all ranks, which all call it: what a run takes from files that may
    /// differ from host to host. `what` names it in the error.
    ///
    /// # Errors
    /// If a rank's text differs from rank 0's, on every rank, or if a rank failed.
    pub fn same(&self, what: &str, text: &str) -> anyhow::Result<()> {
        crate::rank::same(&self.group, what, text)
    }

    /// Fails once Ctrl-C or SIGTERM came.
    pub(crate) fn check_interrupt(&self) -> anyhow::Result<()> {
        if self.interrupt.is_set() { Err(Interrupted.into()) } else { Ok(()) }
    }
}
