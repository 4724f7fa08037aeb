//! What a run will hold and send, rank by rank, and whether the machine has that much memory.

use std::ops::Add;

use anyhow::bail;
use brigade_core::plan::{BoundaryTensor, Configuration, Footprint, MemoryFootprint};
use brigade_core::{
    Blocks, DP, Dtype, EngineSettings, MeasuredActivations, PP, REPLICATE, Recompute, ReduceEvery,
};
use brigade_files::write_atomic;
use brigade_report::{PLANNED_MEMORY_FILE, PlannedMemory, memory_capacity};

use super::machine::Machine;
use super::need::{Need, assessment};
use super::sampled::Measurable;
use crate::error::print_stderr;
use crate::folder::MEMORY_PLAN;
use crate::run::Session;
use crate::settings::{Backend, RunPlan};

/// What each rank of a run will hold and send, and what that means on this machine.
pub(crate) struct MemoryPlan {
    pub footprint: Footprint,
    /// Why what blocks keep inside is not in it, if it is not.
    pub unmeasured: Option<String>,
    /// What the ranks of this machine need and what it has; none where that is unknown.
    pub assessment: Option<Assessment>,
}

/// Whether a machine has what its ranks need.
pub(crate) struct Assessment {
    pub fits: bool,
    /// Need and memory in words, and what would fit if this does not.
    pub text: String,
}

impl Session {
    /// Measures the blocks and computes what each rank will hold and send.
    ///
    /// # Errors
    /// If the model cannot be trained as it is configured.
    pub(crate) fn memory_plan(&self, plan: &RunPlan, model: &dyn Measurable) -> anyhow::Result<MemoryPlan> {
        let machine = Machine::of(self);
        let measured = self.measured(model, self.settings.train.micro_batch_size);
        let smaller = |size| self.measured(model, size).ok();
        self.plan_with(plan, model.blocks(), machine.as_ref(), measured, &smaller)
    }

    /// On rank 0 of a process of its own, warns before anything large is allocated if the machine has less memory than the run needs, and
    /// leaves a note of both for its launcher. The model's samples are on the CPU's device, whatever the model's is.
    pub(crate) fn check_memory(&self, run: &RunPlan, model: &dyn Measurable) {
        let machine = Machine::of(self).filter(|_| self.rank() == 0);
        let Some(machine) = machine else { return };
        let note = |plan: &MemoryPlan| {
            let path = self.out.join(MEMORY_PLAN);
            // Without the notes the launcher says less after a failure, and a report less of memory, which is no reason to fail here.
            drop(path.parent().map(std::fs::create_dir_all));
            if let Some(assessment) = &plan.assessment {
                drop(write_atomic(&path, assessment.text.as_bytes()));
            }
            let planned = serde_json::to_vec(&planned_memory(&plan.footprint)).unwrap_or_default();
            drop(write_atomic(&self.out.join(PLANNED_MEMORY_FILE), &planned));
        };
        // Whatever is wrong with the model, the run itself finds and reports.
        let plan = |measured, smaller: &dyn Fn(usize) -> Option<MeasuredActivations>| {
            let plan = self.plan_with(run, model.blocks(), Some(&machine), measured, smaller).ok()?;
            note(&plan);
            plan.assessment
        };
        // First without what takes memory itself to be measured.
        let Some(mut assessment) = plan(Err(anyhow::anyhow!("it has not been measured yet")), &|_| None)
        else {
            return;
        };
        if assessment.fits && self.measures(model) {
            self.heartbeat.send("measuring what the blocks need");
            let measured = self.measured(model, self.settings.train.micro_batch_size);
            let smaller = |size| self.measured(model, size).ok();
            assessment = plan(measured, &smaller).unwrap_or(assessment);
        }
        if !assessment.fits && !self.quiet {
            print_stderr(format_args!("warning: {}", assessment.text));
        } else if !self.measures(model) && !self.quiet {
            let mixed = match run.engine.precision.compute {
                Dtype::Bf16 => {
                    ", and names blocks that use tensors of two number types in one operation, which a GPU does not notice"
                }
                Dtype::F32 => "",
            };
            print_stderr(format_args!(
                "note: the memory plan leaves out what blocks keep for their backward, which on a GPU is not measured for this model; --dry-run measures it on the CPU{mixed}"
            ));
        }
    }

    /// On rank 0, warns if the machine has less memory than the parameters take of a model that is not trained.
    pub(crate) fn check_memory_of_parameters(&self, plan: &RunPlan, chain: &Blocks) {
        let Some(machine) = Machine::of(self).filter(|_| self.rank() == 0 && !self.quiet) else { return };
        // Whatever is wrong with the model, running it finds and reports.
        let Ok(mut configuration) = configuration(plan, chain, MeasuredActivations::default()) else {
            return;
        };
        configuration.units.iter_mut().for_each(|unit| unit.trainable = false);
        let Ok(footprint) = Footprint::of(&configuration) else { return };
        let need = Need::of(&footprint, configuration.dp * configuration.replicas, &machine);
        let assessment = assessment(&machine, need, None, Vec::new);
        if !assessment.fits {
            print_stderr(format_args!("warning: {}", assessment.text));
        }
    }

    /// The plan with what was measured. `smaller` measures fewer samples.
    fn plan_with(
        &self,
        plan: &RunPlan,
        chain: &Blocks,
        machine: Option<&Machine>,
        measured: anyhow::Result<MeasuredActivations>,
        smaller: &dyn Fn(usize) -> Option<MeasuredActivations>,
    ) -> anyhow::Result<MemoryPlan> {
        let (measured, unmeasured) = match measured {
            Ok(measured) if measured.saved_activations.is_empty() => {
                (measured, Some(
                    "neither the program's allocator nor this system reports the size of the heap; `brigade::CountedHeap` as the program's global allocator does".to_owned(),
                ))
            }
            Ok(measured) => (measured, None),
            Err(error) => (MeasuredActivations::default(), Some(format!("{error:#}"))),
        };
        let configuration = configuration(plan, chain, measured)?;
        let footprint = Footprint::of(&configuration)?;
        let smaller = |size| {
            let measured = smaller(size).filter(|_| unmeasured.is_none())?;
            Some((measured.boundary_activations, measured.saved_activations))
        };
        let size = self.settings.train.micro_batch_size;
        let assessment = machine.map(|machine| {
            let alternatives = || configuration.alternatives(size, &chain.costs(), smaller);
            let dp = configuration.dp * configuration.replicas;
            let counted = self.counted.borrow();
            let beside = counted.iter().map(|model| Need::of(&model.footprint, dp, machine));
            let need = Need::of(&footprint, dp, machine);
            let mut assessment = assessment(machine, need, beside.reduce(Need::add), alternatives);
            if unmeasured.is_some() {
                assessment.text.push_str("; tensors saved inside blocks come on top of that");
            }
            assessment
        });
        Ok(MemoryPlan { footprint, unmeasured, assessment })
    }

    /// Whether a run measures what blocks keep inside, which it does on the CPU: for a GPU only where that takes little time.
    fn measures(&self, model: &dyn Measurable) -> bool {
        self.settings.compute.backend == Backend::Cpu || model.is_soon_measured()
    }

    /// What the blocks need for this many samples, which are on the CPU's device: measured, or extended from what fewer need where the host has not
    /// enough memory to measure it.
    fn measured(&self, model: &dyn Measurable, size: usize) -> anyhow::Result<MeasuredActivations> {
        anyhow::ensure!(
            self.is_dry_run || self.measures(model),
            "it is only measured on the CPU (by --dry-run)"
        );
        let meter = brigade_cpu::heap_meter();
        let EngineSettings { precision, schedule, chunks, .. } = &self.plan.engine;
        let splits = schedule.splits_backward() && self.plan.mesh.size(PP) * chunks > 1;
        let measured = |size| model.activations(size, precision.compute, splits, meter.as_deref());
        let of_half = |more: usize| -> anyhow::Result<[(usize, MeasuredActivations); 2]> {
            Ok([(more / 2, measured(more / 2)?), (more, measured(more)?)])
        };
        if size <= 2 {
            return measured(size);
        }
        let Ok(two) = of_half(2) else { return measured(size) };
        let fits = |samples| {
            let extended = MeasuredActivations::of_samples(samples, two.clone());
            can_be_measured(model.blocks(), &extended)
        };
        if fits(size) {
            return measured(size);
        }
        // Temporary memory does not grow for ever, so that the largest ones that can be measured tell most.
        let powers = (2..usize::BITS).map(|power| 1 << power);
        let most = powers.take_while(|samples| *samples < size && fits(*samples)).last();
        let measured = most.map_or(Ok(two.clone()), of_half)?;
        Ok(MeasuredActivations::of_samples(size, measured))
    }
}

/// Whether the host has the memory, with a margin, that it takes to run one block after the other on a micro-batch.
fn can_be_measured(blocks: &Blocks, needs: &MeasuredActivations) -> bool {
    let Some(memory) = memory_capacity() else { return true };
    let most = |bytes: &mut dyn Iterator<Item = u64>| bytes.max().unwrap_or(0);
    let parameters = most(&mut blocks.parameters_by_block().iter().map(|(_, count)| 4 * *count as u64));
    let between = |tensors: &Vec<BoundaryTensor>| tensors.iter().map(|tensor| tensor.bytes).sum();
    let between = most(&mut needs.boundary_activations.iter().map(between));
    let inside = most(&mut needs.saved_activations.iter().map(|block| block.peak + block.output));
    let left = memory.address_space.map_or(memory.available, |space| space.left.min(memory.available));
    2 * (2 * parameters + between + inside) <= left
}

/// What the rank that needs most of each is planned to hold at its peak.
fn planned_memory(footprint: &Footprint) -> PlannedMemory {
    let most = |bytes: fn(&MemoryFootprint) -> u64| {
        footprint.stages.iter().map(|stage| bytes(&stage.memory)).max().unwrap_or(0)
    };
    PlannedMemory {
        parameter_bytes: most(|memory| memory.parameters.peak),
        gradient_bytes: most(|memory| memory.gradients.peak),
        optimizer_bytes: most(|memory| memory.optimizer.peak),
        activation_bytes: most(|memory| memory.boundary_activations.peak),
        saved_activation_bytes: most(|memory| memory.saved_activations.peak),
    }
}

fn configuration(
    plan: &RunPlan,
    chain: &Blocks,
    measured: MeasuredActivations,
) -> anyhow::Result<Configuration> {
    let EngineSettings { zero, schedule, chunks, tied_gradients, recompute, precision, offload, .. } =
        &plan.engine;
    if plan.engine.strategy.servers() > 0 {
        bail!("those of servers and of their workers are not counted");
    }
    Ok(Configuration {
        units: chain.units(&plan.engine.groups)?,
        boundary_activations: measured.boundary_activations,
        saved_activations: measured.saved_activations,
        pp: plan.mesh.size(PP),
        dp: plan.mesh.size(DP),
        replicas: plan.mesh.size(REPLICATE),
        split: plan.split(&chain.costs())?,
        schedule: *schedule,
        chunks: *chunks,
        tied_each_micro_batch: *tied_gradients == ReduceEvery::MicroBatch,
        micro_batches: plan.gradient_accumulation_steps,
        sync_every: plan.engine.strategy.period(),
        outer: plan.outer,
        zero_stage: zero.stage,
        reshard: zero.reshard_policy(plan.mesh.size(PP)),
        prefetch: zero.prefetch,
        reduce_each_micro_batch: zero.reduces_each_micro_batch(),
        recompute_every: match recompute {
            Recompute::None => 0,
            Recompute::Every(k) => *k,
        },
        compute_bytes: precision.compute.bytes(),
        reduce_bytes: precision.reduce.bytes(),
        compression: plan.compression,
        gather_codes: plan.engine.zero.gather_codes,
        offload: offload.is_some(),
        optimizer_bytes: plan.optimizer.state_bytes_per_value(&brigade_cpu::device()),
    })
}
