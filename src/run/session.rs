//! A rank in its world.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use brigade_comm::{AuthToken, Group};
use brigade_core::plan::Footprint;
use brigade_core::{Collectives, DATA, Groups, Mesh};
use brigade_launch::HeartbeatSender;
use brigade_launch::interrupt::{Interrupt, InterruptKind};
use brigade_report::DeviceMemory;
use brigade_sorted::SortedMap;
use burn::tensor::Device;

use super::buckets::{buckets, network_delay};
use super::program::Program;
use super::run_folder::StartFrom;
use crate::device::{MakesHostGroups, RankDevice};
use crate::error::Interrupted;
use crate::settings::{RunPlan, Settings};

/// A further model in the plan of memory.
pub(crate) struct CountedModel {
    pub name: String,
    pub footprint: Footprint,
    /// Why what its blocks keep inside is not in it, if it is not.
    pub unmeasured: Option<String>,
}

/// A rank in its world, ready to train. [`launch`](crate::launch) and [`Program::run`](crate::Program::run) hand one to each rank.
pub struct Session {
    group: Group,
    groups: Groups,
    device: RankDevice,
    pub(crate) settings: Settings,
    pub(crate) plan: RunPlan,
    pub(crate) out: PathBuf,
    pub(crate) world: String,
    pub(crate) quiet: bool,
    /// The whole resolved configuration, as TOML.
    pub(crate) config: String,
    /// Ranks on this machine, each its own process; none if unknown.
    pub(crate) local_ranks: Option<usize>,
    /// This rank's number among them.
    pub(crate) local_rank: usize,
    /// Whether the run is described instead of trained.
    pub(crate) is_dry_run: bool,
    pub(crate) start_from: StartFrom,
    /// Identifies this run's checkpoints.
    pub(crate) run: String,
    /// How often the launcher has restarted the ranks.
    pub(crate) restart: u32,
    /// Reports to the launcher what this rank is doing.
    pub(crate) heartbeat: HeartbeatSender,
    /// Texts that must be the same on all ranks and in the run's checkpoints: see
    /// [`check_same`](Self::check_same).
    pub(crate) facts: SortedMap<String, String>,
    /// On rank 0, further models that count in the plan of memory.
    pub(crate) counted: RefCell<Vec<CountedModel>>,
    /// Whether a model was prepared.
    pub(crate) has_run: Cell<bool>,
    /// How long a message takes between the ranks, where they are on several hosts.
    pub(crate) network_delay: Option<Duration>,
    interrupt: Interrupt,
    /// What separately launched workers authenticate each other with.
    pub(crate) token: AuthToken,
}

impl Session {
    /// A rank of the plan's mesh, or the only process of a dry run. All ranks call it together.
    pub(crate) fn new(
        program: &Program<'_>,
        device: RankDevice,
        group: Group,
        plan: RunPlan,
        out: PathBuf,
        world: String,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        // A rank computes on the thread that its session is made on.
        brigade_kernels::set_fused(program.settings.compute.fused);
        let groups = device.groups(&group, plan.mesh.clone(), program.settings)?;
        let mut plan = plan;
        let network_delay = network_delay(&group)?;
        plan.engine.buckets = buckets(program.settings, network_delay);
        Ok(Self {
            groups,
            group,
            device,
            settings: program.settings.clone(),
            plan,
            out,
            world,
            quiet: program.flags.quiet,
            config: program.config.clone(),
            local_ranks: None,
            local_rank: 0,
            is_dry_run: false,
            start_from: StartFrom::Scratch,
            run: String::new(),
            restart: 0,
            heartbeat: HeartbeatSender::from_env(),
            facts: SortedMap::new(),
            counted: RefCell::default(),
            has_run: Cell::new(false),
            network_delay,
            interrupt,
            token: AuthToken::new(""),
        })
    }

    /// This process's rank in the world.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Number of ranks in the world.
    pub fn world_size(&self) -> usize {
        self.group.size()
    }

    /// The device to build this rank's model on.
    pub fn device(&self) -> Device {
        self.device.device.clone()
    }

    /// The device's model, if it is known.
    pub(crate) fn device_name(&self) -> Option<String> {
        self.device.name.clone()
    }

    /// The device memory that this process's tensors use now; `None` on the CPU, and if the device does not report it.
    pub(crate) fn device_memory(&self) -> Option<DeviceMemory> {
        self.device.memory()
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.settings.train.seed
    }

    /// All settings. Values that are `auto` follow from the backend: see [`Settings::collectives`] and
    /// [`ComputeSettings::resolved_dtype`](crate::ComputeSettings::resolved_dtype).
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The world's group, for communication of your own.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The world's collectives over tensors.
    pub fn collectives(&self) -> Arc<dyn Collectives> {
        self.groups.world().clone()
    }

    /// This rank's groups along the axes of the mesh.
    pub(crate) fn groups(&self) -> Groups {
        self.groups.clone()
    }

    /// Groups along the axes of a mesh over another world, through host memory. All its ranks call it together.
    pub(crate) fn host_groups(&self, world: &Group, mesh: Mesh) -> anyhow::Result<Groups> {
        Ok(self.device.host_groups(world, mesh)?)
    }

    /// What makes such groups, for another thread.
    pub(crate) fn makes_host_groups(&self) -> MakesHostGroups {
        self.device.makes_host_groups()
    }

    /// Checks that `text` is the same on all ranks; all ranks call it. It is meant for what a run reads from files that may
    /// differ from host to host. The text is saved with checkpoints and compared again when a run resumes; `what` names it in
    /// the error.
    ///
    /// # Errors
    /// On every rank, if any rank's text differs from rank 0's; or if a rank failed.
    pub fn check_same(&mut self, what: &str, text: &str) -> anyhow::Result<()> {
        crate::world::check_same(&self.group, what, text)?;
        self.facts.insert(what.to_owned(), text.to_owned());
        Ok(())
    }

    /// This rank's position among pipelines that compute the same thing at the same time on different data. All ranks of a pipeline have the same. A parameter server,
    /// which leaves out what it is given, has that of a worker.
    pub fn data_parallel_rank(&self) -> usize {
        self.pipeline_of(self.rank()) % self.data_parallel_size()
    }

    /// The position of any rank among the pipelines, and the servers behind them.
    pub(crate) fn pipeline_of(&self, rank: usize) -> usize {
        self.plan.mesh.position(rank, &DATA)
    }

    /// The number of these pipelines, without parameter servers.
    pub fn data_parallel_size(&self) -> usize {
        (self.plan.mesh.size_over(&DATA) - self.plan.servers()).max(1)
    }

    /// A text of each pipeline, in the order of their [ranks](Self::data_parallel_rank): all ranks call it, those of a pipeline with the same text.
    ///
    /// # Errors
    /// If a text has more than 16 MiB, or a rank failed.
    pub fn all_gather_text(&self, text: &str) -> anyhow::Result<Vec<String>> {
        let texts = crate::world::all_gather_whole_text(&self.group, text)?;
        let first_rank = |pipeline| (0..texts.len()).find(|rank| self.pipeline_of(*rank) == pipeline);
        Ok((0..self.data_parallel_size()).filter_map(first_rank).map(|rank| texts[rank].clone()).collect())
    }

    /// Tells the launcher that this rank is alive, and what it is doing. A step does so by itself; what takes minutes between steps does so now and then, as a rank
    /// that sends nothing for `--heartbeat-timeout` is killed.
    pub fn send_heartbeat(&self, doing: &str) {
        self.heartbeat.send(doing);
    }

    /// From now until [`mark_started`](Self::mark_started) the process may end at once on a signal: nothing would be lost.
    pub(crate) fn mark_preparing(&self) {
        self.interrupt.mark_preparing();
    }

    /// From now on a signal must not end the process at once: work would be lost.
    pub(crate) fn mark_started(&self) {
        self.interrupt.mark_training();
    }

    /// Fails after Ctrl-C.
    pub(crate) fn check_interrupt(&self) -> anyhow::Result<()> {
        if self.interrupt.kind() == Some(InterruptKind::Stop) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Whether a signal told this rank that its machine is about to be taken away.
    pub(crate) fn is_preempted(&self) -> bool {
        self.interrupt.kind() == Some(InterruptKind::Preempt)
    }
}
