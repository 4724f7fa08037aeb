//! One rank's part in a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_comm::Group;
use brigade_core::plan::{CutTensor, Inside};
use brigade_core::{Collectives, Groups};
use brigade_launch::HeartbeatSender;
use brigade_launch::interrupt::{Interrupt, InterruptKind};
use brigade_report::DeviceMemory;
use burn::tensor::Device;

use super::program::Program;
use super::run_folder::Beginning;
use crate::device::Processor;
use crate::error::Interrupted;
use crate::settings::{Plan, Settings};

/// A rank in its world, ready to train.
pub struct Session {
    group: Group,
    groups: Groups,
    processor: Processor,
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) out: PathBuf,
    pub(crate) world: String,
    pub(crate) quiet: bool,
    /// The whole resolved configuration, as TOML.
    pub(crate) config: String,
    /// The tensors that go into each block, where they are known.
    pub(crate) cuts: Vec<Vec<CutTensor>>,
    /// What each block needs inside, and the loss, where that is known.
    pub(crate) insides: Vec<Inside>,
    /// Whether the run is only to be described.
    pub(crate) dry: bool,
    pub(crate) beginning: Beginning,
    /// Tells this run's checkpoints from those of others.
    pub(crate) run: String,
    /// How often the launcher has started the ranks again.
    pub(crate) restart: u32,
    /// Tells the launcher what this rank is at.
    pub(crate) heartbeat: HeartbeatSender,
    /// What all ranks have in common and a checkpoint must have, too: see [`same`](Self::same).
    pub(crate) facts: BTreeMap<String, String>,
    interrupt: Interrupt,
}

impl Session {
    /// A rank of the plan's mesh, or a process that is alone and only describes the run.
    pub(crate) fn new(
        program: &Program<'_>,
        processor: Processor,
        group: Group,
        plan: Plan,
        out: PathBuf,
        world: String,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            groups: processor.groups(&group, plan.mesh, program.settings)?,
            group,
            processor,
            settings: program.settings.clone(),
            plan,
            out,
            world,
            quiet: program.flags.quiet,
            config: program.config.clone(),
            cuts: program.cuts.clone(),
            insides: program.insides.clone(),
            dry: false,
            beginning: Beginning::Fresh,
            run: String::new(),
            restart: 0,
            heartbeat: HeartbeatSender::from_environment(),
            facts: BTreeMap::new(),
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
        self.processor.device.clone()
    }

    /// The model of the device, where it is known.
    pub(crate) fn device_name(&self) -> Option<String> {
        self.processor.name.clone()
    }

    /// What this process's tensors take of the device's memory now; none on the CPU, and where the device does not tell.
    pub(crate) fn device_memory(&self) -> Option<DeviceMemory> {
        self.processor.memory()
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.settings.train.seed
    }

    /// All settings. What is `auto` in them follows from the backend: [`Settings::collectives`],
    /// [`ComputeSettings::float`](crate::ComputeSettings::float).
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
    /// differ from host to host. It is saved with checkpoints, and compared again when a run goes on from one. `what`
    /// names it in the error.
    ///
    /// # Errors
    /// If a rank's text differs from rank 0's, on every rank, or if a rank failed.
    pub fn same(&mut self, what: &str, text: &str) -> anyhow::Result<()> {
        crate::world::same(&self.group, what, text)?;
        self.facts.insert(what.to_owned(), text.to_owned());
        Ok(())
    }

    /// What a checkpoint must have to be one of this run.
    pub(crate) fn identity(&self) -> (&str, &BTreeMap<String, String>) {
        (&self.run, &self.facts)
    }

    /// Training is prepared: until it [begins](Self::begins) there is nothing to lose by an end.
    pub(crate) fn prepares(&self) {
        self.interrupt.mark_preparing();
    }

    /// Training begins, or other work: there is something to lose from now on.
    pub(crate) fn begins(&self) {
        self.interrupt.mark_training();
    }

    /// Fails once Ctrl-C came.
    pub(crate) fn check_interrupt(&self) -> anyhow::Result<()> {
        if self.interrupt.kind() == Some(InterruptKind::Stop) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Whether a signal told this rank that its machine is about to be taken away.
    pub(crate) fn is_preempted(&self) -> bool {
        self.interrupt.kind() == Some(InterruptKind::Preempt)
    }
}
