//! The memory and the time of one configuration.

use serde::Serialize;

use super::candidate::{Candidate, PREFETCH};
use super::context::Context;
use super::shortage::Shortage;
use super::workload::{PlanError, Workload};
use crate::cluster::Collective;
use crate::memory::{ActivationSettings, MemoryParts, stage_memory};
use crate::schedule::formula;
use crate::time::{
    BlockTime, GroupPlacement, Network, SimulatedBlock, SimulatedStage, StepParts, StepPlan,
    optimizer_seconds, simulate_long,
};
use crate::unshard::ReshardPolicy;

/// How many times as long kernels of a GPU take while collectives run beside them: those of NCCL take 24 of the 132 multiprocessors of an H100 or the 108 of an A100. Measured were
/// 1.19 on average and 1.4 at most ("Characterizing compute-communication overlap in GPU-accelerated distributed deep learning", 2025, arXiv 2507.03114).
const BESIDE_COLLECTIVES: f64 = 1.25;

/// What a configuration holds and how long it takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanEvaluation {
    /// The configuration.
    pub candidate: Candidate,
    /// Blocks of each part of the model.
    pub split: Vec<usize>,
    /// The stage that holds the most.
    pub fullest_stage: usize,
    /// What a rank of it holds.
    pub memory: MemoryParts,
    /// Seconds of a step.
    pub seconds: f64,
    /// Where they go.
    pub parts: StepParts,
    /// Tokens a second of all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs utilization.
    pub mfu: f64,
}

impl PlanEvaluation {
    /// The split as a setting: no parts where there is one alone.
    pub fn stages_setting(&self) -> String {
        let parts = if self.split.len() > 1 { self.split.as_slice() } else { &[] };
        let parts: Vec<String> = parts.iter().map(usize::to_string).collect();
        format!("pipeline.stages=[{}]", parts.join(","))
    }

    /// What takes the largest share of the step besides the computation; or that nothing does.
    pub fn limit(&self) -> String {
        let parts = self.parts.parts();
        let other = parts.iter().skip(1).max_by(|a, b| a.1.total_cmp(&b.1));
        match other {
            Some((name, seconds)) if *seconds > 0.05 * self.seconds => {
                format!("{name}, {:.0}% of the step", 100.0 * seconds / self.seconds)
            }
            _ => "products and memory of the devices".into(),
        }
    }
}

/// Evaluates configurations of one workload; what they share is computed once.
pub struct Evaluator<'a> {
    context: Context<'a>,
    network: Network<'a>,
}

impl<'a> Evaluator<'a> {
    /// For this workload.
    pub fn new(workload: &'a Workload) -> Self {
        Self { context: Context::new(workload), network: Network::new(&workload.cluster, workload.algorithm) }
    }

    pub(super) fn workload(&self) -> &'a Workload {
        self.context.workload
    }

    /// What a rank of each stage holds.
    ///
    /// # Errors
    /// If there are more stages than blocks.
    pub fn stages(&self, candidate: &Candidate) -> Result<Vec<MemoryParts>, PlanError> {
        let layout = self.context.layout(candidate)?;
        let workload = self.workload();
        let activations = ActivationSettings {
            sequence_length: workload.sequence_length,
            micro_batch: candidate.micro_batch,
            dtype: workload.dtype,
            tp: candidate.tp,
            fused_attention: workload.fused_attention,
            keeps_gathered: workload.accounting.keeps_gathered,
        };
        let of_stage = |stage| {
            stage_memory(
                &workload.model,
                stage,
                &workload.accounting,
                &candidate.sharding(self.tied_each_micro_batch(), workload.kept_bytes),
                &activations,
                candidate.kind(),
                candidate.recompute_every,
            )
        };
        Ok(layout.stages.iter().map(of_stage).collect())
    }

    /// What the fullest stage holds, and which it is.
    ///
    /// # Errors
    /// As [`stages`](Self::stages).
    pub fn memory(&self, candidate: &Candidate) -> Result<(usize, MemoryParts), PlanError> {
        let all = self.stages(candidate)?.into_iter().enumerate();
        Ok(all.max_by_key(|(stage, parts)| (parts.total(), std::cmp::Reverse(*stage))).unwrap_or_default())
    }

    /// Whether devices and hosts have what this holds.
    pub fn fits(&self, memory: &MemoryParts) -> bool {
        self.missing(memory).is_none()
    }

    /// What a rank which holds this lacks, and its host. What processors offload stays in their memory, which is the host's.
    pub fn missing(&self, memory: &MemoryParts) -> Shortage {
        let cluster = &self.workload().cluster;
        let (on_device, on_host) = match cluster.is_cpu() {
            true => (memory.total() + memory.host, 0),
            false => (memory.total(), memory.host * cluster.devices_per_node as u64),
        };
        Shortage {
            device: on_device.saturating_sub(cluster.usable_memory()),
            host: on_host.saturating_sub(cluster.host_memory / 10 * 9),
        }
    }

    /// Devices of each node.
    pub(super) fn devices_per_node(&self) -> usize {
        self.workload().cluster.devices_per_node
    }

    /// The data-parallel ranks of a stage that share its shards, and those that hold the same shard.
    fn data_parallel(&self, candidate: &Candidate) -> [GroupPlacement; 2] {
        let shards = candidate.shards();
        [
            self.network.ranks(shards, candidate.tp),
            self.network.ranks(candidate.replicate, candidate.tp * shards),
        ]
    }

    /// Parameters of a block that a rank steps and reduces, and those that it has besides: what is frozen.
    fn own(&self, candidate: &Candidate, block: usize) -> [f64; 2] {
        let Workload { model, accounting, .. } = self.workload();
        let (trained, all) = (model.trained_parameters(block), model.block_parameters(block));
        let steps = accounting.steps_copies && model.trains_table();
        let copies = steps && block + 1 == model.blocks() && candidate.pp > 1;
        let copy = if copies { model.tied_parameters() } else { 0 };
        [trained + copy, all - trained].map(|parameters| parameters as f64 / candidate.tp as f64)
    }

    /// Parameters that a block reads of another one, which steps them: the table of a tied head.
    fn read_elsewhere(&self, candidate: &Candidate, block: usize) -> f64 {
        let Workload { model, accounting, .. } = self.workload();
        let steps_copy = accounting.steps_copies && candidate.pp > 1;
        let reads = block + 1 == model.blocks() && !steps_copy;
        if reads { model.tied_parameters() as f64 / candidate.tp as f64 } else { 0.0 }
    }

    /// Whether gradients of a tied head go to the stage of its table with each micro-batch; GPUs send their sum once a step.
    fn tied_each_micro_batch(&self) -> bool {
        self.workload().cluster.is_cpu()
    }

    /// Bytes that go back with each gradient of an activation: the gradient of a tied head, to the stage that steps the table. What is sent once a step is left out.
    fn relayed(&self, candidate: &Candidate) -> f64 {
        let Workload { model, accounting, .. } = self.workload();
        let table = self.read_elsewhere(candidate, model.blocks() - 1);
        let is_sent = self.tied_each_micro_batch() && model.trains_table();
        if is_sent { table * accounting.parameter as f64 } else { 0.0 }
    }

    /// Whether gradients are summed in one piece once all of them are there.
    fn sums_after_backward(&self, candidate: &Candidate) -> bool {
        candidate.zero == 1 && self.workload().accounting.sums_after_backward
    }

    /// Seconds in which a tied table's gradients, and its new values where one of its two stages alone steps it, go to the other stage after the last micro-batch.
    fn tied_once(&self, candidate: &Candidate, stage: usize) -> f64 {
        let Workload { model, accounting, .. } = self.workload();
        let has_table = stage == 0 || stage + 1 == candidate.pp;
        if candidate.pp == 1 || !has_table || self.tied_each_micro_batch() || !model.trains_table() {
            return 0.0;
        }
        let bytes = accounting.sum + if accounting.steps_copies { 0 } else { accounting.parameter };
        let (ranks, last) = (candidate.dp * candidate.tp, candidate.kind().placement());
        let (last, _) = last.owner(candidate.pp, candidate.pp * candidate.chunks - 1);
        let table = (model.tied_parameters() / candidate.tp as u64 * bytes) as f64;
        if last == 0 || table == 0.0 { 0.0 } else { self.network.message(table, 0, last * ranks, ranks) }
    }

    /// The step as it is simulated.
    ///
    /// # Errors
    /// If there are more stages than blocks.
    pub fn step_plan(&self, candidate: &Candidate) -> Result<StepPlan, PlanError> {
        let layout = self.context.layout(candidate)?;
        let workload = self.workload();
        let Workload { model, cluster, accounting, .. } = workload;
        let times = self.context.times(candidate.tp, candidate.micro_batch, candidate.micro_batches > 1);
        let [peers, replicas] = self.data_parallel(candidate);
        let (tensor, again, sums, boundary) = self.within_layers(candidate);
        let beside = if cluster.is_cpu() { 1.0 } else { BESIDE_COLLECTIVES };
        // What kernels take longer beside sums is not hidden.
        let hidden = |time: &BlockTime| (time.backward_weights * beside).min(sums) / beside;
        let parameter = accounting.parameter as f64;
        let block = |block: usize| {
            let (time, [own, frozen]) = (times[block], self.own(candidate, block));
            let recomputed =
                candidate.recompute_every > 0 && (block + 1).is_multiple_of(candidate.recompute_every);
            let sum = if candidate.zero == 0 { Collective::AllReduce } else { Collective::ReduceScatter };
            let gathers = candidate.zero == 3;
            let is_layer = block > 0 && block < model.blocks() - 1;
            let gathered = (own + frozen + self.read_elsewhere(candidate, block)) * parameter;
            SimulatedBlock {
                forward: time.forward,
                recompute: if recomputed && block >= model.first_trained() { time.forward } else { 0.0 },
                backward_input: time.backward_input,
                backward_weights: time.backward_weights,
                tensor_parallel: if is_layer { tensor } else { 0.0 },
                gather_again: if is_layer { again } else { 0.0 },
                hidden: if is_layer { hidden(&time) } else { 0.0 },
                gather: if gathers {
                    self.network.collective(Collective::AllGather, gathered, peers)
                } else {
                    0.0
                },
                reduce: match self.sums_after_backward(candidate) {
                    true => 0.0,
                    false => self.network.collective(sum, own * workload.reduce_bytes, peers),
                },
            }
        };
        let stage = |stage: &crate::memory::StageShape| {
            let own: f64 =
                stage.chunks.iter().cloned().flatten().map(|block| self.own(candidate, block)[0]).sum();
            let stepped = if candidate.zero > 0 { own / candidate.shards() as f64 } else { own };
            let state = (accounting.master + accounting.moments) as f64;
            let host = candidate.offload.then_some(cluster.host_bandwidth);
            let gathers = (1..3).contains(&candidate.zero);
            let gather = self.network.collective(Collective::AllGather, own * parameter, peers);
            let [late, over] = match self.sums_after_backward(candidate) {
                true => [own, own],
                false => [0.0, own / candidate.shards() as f64],
            };
            let sum = |elements: f64, ranks| {
                self.network.collective(Collective::AllReduce, elements * workload.reduce_bytes, ranks)
            };
            SimulatedStage {
                reduce: sum(late, peers) + sum(over, replicas) + self.tied_once(candidate, stage.rank),
                optimizer: optimizer_seconds(&self.context.device, stepped, state, parameter, host),
                gather: if gathers { gather } else { 0.0 },
            }
        };
        let depth = (cluster.devices() as f64).log2().ceil();
        Ok(StepPlan {
            blocks: (0..model.blocks()).map(block).collect(),
            split: layout.split.clone(),
            stages: layout.stages.iter().map(stage).collect(),
            messages: [
                self.messages(candidate, |_| boundary),
                self.messages(candidate, |part| match part {
                    // What begins with the first block that is trained, or before it, sends no gradient back.
                    part if layout.split[..part].iter().sum::<usize>() <= model.first_trained() => 0.0,
                    _ => boundary + self.relayed(candidate),
                }),
            ],
            reshard: candidate.reshard,
            prefetch: PREFETCH,
            reduce_each_micro_batch: candidate.zero >= 2 && candidate.reduce_each_micro_batch,
            overlap: workload.overlap,
            norm: depth * cluster.inter_node.latency.min(cluster.intra_node.latency),
            host: cluster.device.step,
            beside,
            slow: self.slow(candidate),
        })
    }

    /// Seconds of a layer's collectives in a forward under tensor parallelism, two all-reduces, each as an all-gather and a reduce-scatter since what is between
    /// them is sharded, too; those of gathering again in the backward, of which Megatron-LM hides a part behind products; those of sums in the backward that products may
    /// hide; and bytes of a message between stages.
    fn within_layers(&self, candidate: &Candidate) -> (f64, f64, f64, f64) {
        let workload = self.workload();
        let tokens = (workload.sequence_length * candidate.micro_batch) as f64;
        let boundary = tokens * workload.model.hidden as f64 * workload.dtype.bytes() as f64;
        let ranks = self.network.ranks(candidate.tp, 1);
        let halves = [Collective::AllGather, Collective::ReduceScatter];
        let [gathers, sums] = halves.map(|half| 2.0 * self.network.collective(half, boundary, ranks));
        let again = if workload.accounting.keeps_gathered { 0.0 } else { gathers };
        let hidden = if workload.accounting.hides_tensor_sums { sums } else { 0.0 };
        (gathers + sums, again, hidden, boundary / candidate.tp as f64)
    }

    /// Seconds of the message before each part of the model but the first.
    fn messages(&self, candidate: &Candidate, bytes: impl Fn(usize) -> f64) -> Vec<f64> {
        let (kind, pp) = (candidate.kind(), candidate.pp);
        let ranks = candidate.dp * candidate.tp;
        let first = |part: usize| kind.placement().owner(pp, part).0 * ranks;
        (1..pp * candidate.chunks)
            .map(|part| match (first(part - 1), first(part)) {
                (from, to) if from == to || bytes(part) == 0.0 => 0.0,
                (from, to) => self.network.message(bytes(part), from, to, ranks),
            })
            .collect()
    }

    /// By column: how much longer each stage takes. Columns with slow ranks stand for themselves, one for all others.
    fn slow(&self, candidate: &Candidate) -> Vec<Vec<f64>> {
        let healthy = vec![1.0; candidate.pp];
        let mut columns: brigade_sorted::SortedMap<usize, Vec<f64>> = Default::default();
        for (rank, factor) in &self.workload().slow_ranks {
            let of_stage = candidate.dp * candidate.tp;
            let column = columns.entry(rank % of_stage / candidate.tp).or_insert_with(|| healthy.clone());
            if let Some(stage) = column.get_mut(rank / of_stage) {
                *stage = stage.max(*factor);
            }
        }
        let some_are_well = columns.len() < candidate.dp;
        some_are_well.then_some(healthy).into_iter().chain(columns.into_values()).collect()
    }

    /// Seconds of a step in closed form, near enough to choose what is worth simulating.
    ///
    /// # Errors
    /// If there are more stages than blocks.
    pub fn estimate(&self, candidate: &Candidate) -> Result<f64, PlanError> {
        let plan = self.step_plan(candidate)?;
        let layout = self.context.layout(candidate)?;
        let m = candidate.micro_batches as f64;
        let gathers = match candidate.reshard {
            ReshardPolicy::AfterUse => 2.0 * m,
            ReshardPolicy::AfterUseUnlessNext => 2.0 * m,
            ReshardPolicy::AfterBackward => m,
            ReshardPolicy::AfterStep => 1.0,
        };
        let reductions = if plan.reduce_each_micro_batch { m } else { 1.0 };
        let (mut slowest, mut longest): (f64, f64) = (0.0, 0.0);
        for (stage, after) in layout.stages.iter().zip(&plan.stages) {
            let (mut computes, mut moves) = (0.0, 0.0);
            for block in stage.chunks.iter().cloned().flatten() {
                let block = plan.blocks[block];
                computes += block.forward + block.recompute + block.backward_input + block.backward_weights;
                computes += block.tensor_parallel + block.backward_collectives();
                moves += gathers * block.gather + reductions * block.reduce;
            }
            let together = if plan.overlap { (m * computes).max(moves) } else { m * computes + moves };
            slowest = slowest.max(together);
            longest = longest.max(after.reduce + after.optimizer + after.gather);
        }
        // Of a micro-batch over one link, and of the first and the last micro-batch over all.
        let links = plan.messages.iter().map(|links| links.iter().copied().fold(0.0, f64::max));
        let busiest = m * candidate.chunks as f64 * links.fold(0.0, f64::max);
        let filling: f64 = plan.messages.iter().flatten().sum();
        let bubble = match candidate.pp {
            1 => 0.0,
            pp => formula::bubble_fraction(candidate.kind(), pp, candidate.chunks, candidate.micro_batches),
        };
        let shared = self.workload().cluster.ranks_per_core();
        let (busy, after) = (shared * slowest, shared * (longest + plan.host));
        Ok((slowest / (1.0 - bubble)).max(busy).max(busiest) + filling + after)
    }

    /// Simulates a step.
    ///
    /// # Errors
    /// If the schedule or the split cannot be.
    pub fn evaluate(&self, candidate: &Candidate) -> Result<PlanEvaluation, PlanError> {
        let plan = self.step_plan(candidate)?;
        let pipeline = |micro_batches| self.context.pipeline(candidate, micro_batches);
        let simulated = simulate_long(&plan, candidate.pp, candidate.micro_batches, pipeline)?;
        let parts = simulated.on_shared_cores(self.workload().cluster.ranks_per_core());
        let (fullest_stage, memory) = self.memory(candidate)?;
        let seconds = parts.total();
        let workload = self.workload();
        Ok(PlanEvaluation {
            candidate: *candidate,
            split: plan.split,
            fullest_stage,
            memory,
            seconds,
            parts,
            tokens_per_second: workload.tokens() / seconds,
            mfu: workload.mfu(seconds),
        })
    }
}
