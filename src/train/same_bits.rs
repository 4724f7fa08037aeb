//! Which other runs have the same bits as this one, and where that is not promised.

use brigade_core::{DP, Dtype, REPLICATE};

use crate::settings::{Backend, CollectivesBackend, RunPlan, Settings, SumOrder};

/// What a run says before it starts; nothing where its weights are the same to the bit on every mesh and machine. `compresses`: whether
/// gradients travel as codes; `sends_tied_once`: whether those of tied weights go to another stage once a step.
pub(super) fn same_bits_note(
    settings: &Settings,
    plan: &RunPlan,
    compresses: bool,
    sends_tied_once: bool,
) -> Option<String> {
    let backend = settings.compute.backend.resolved();
    let condition = bit_equality_condition(plan, compresses).map(|why| {
        format!("the weights are the same to the bit on another number of data-parallel ranks only if {why}")
    });
    let tied = || {
        "the weights are the same to the bit on other meshes only if the gradients of tied weights are sent with each micro-batch \
         (pipeline.tied_gradients = \"micro_batch\")"
            .to_owned()
    };
    let adds_by_itself = settings.collectives() == CollectivesBackend::Mpi
        && settings.comm.order == SumOrder::Engine
        && plan.data_ranks() > 1;
    let in_order = || {
        "the weights are the same to the bit on another number of data-parallel ranks only if sums over ranks are made pairwise, not as MPI adds (comm.order = \"tree\")"
            .to_owned()
    };
    let condition = condition.or_else(|| adds_by_itself.then(in_order));
    let adds_by_host = settings.comm.collectives == CollectivesBackend::Hierarchical && plan.data_ranks() > 1;
    let of_powers = || {
        "the weights are the same to the bit on another number of data-parallel ranks only if each host has a power of two of ranks \
         (comm.collectives = hierarchical adds host by host)"
            .to_owned()
    };
    let condition = condition.or_else(|| adds_by_host.then(of_powers));
    let condition = condition.or_else(|| sends_tied_once.then(tied));
    let on_meshes = match (backend, settings.collectives()) {
        (Backend::Cpu, _) => return condition.map(|condition| format!("note: {condition}")),
        (Backend::Cuda, CollectivesBackend::Nccl) => Some(
            "other meshes give close but not bit-identical weights, since NCCL adds gradients in its own order".into(),
        ),
        (Backend::Cuda, _) if cfg!(feature = "autotune") => Some(
            "other meshes give close but not always bit-identical weights, since each host chooses its kernels by timing them".into(),
        ),
        _ => condition,
    };
    let masks = "dropout masks are the same on every mesh of identical GPUs, but differ from the CPU's";
    let rounds = backend == Backend::Cuda && settings.compute.resolved_dtype() == Dtype::F32;
    let tf32 = rounds.then(|| "products of f32 are TF32 on NVIDIA's GPUs from Ampere on".to_owned());
    let repeats = (backend == Backend::Cuda)
        .then(|| "models with Burn's convolutions have been seen not to repeat to the bit".to_owned());
    let all: Vec<String> =
        on_meshes.into_iter().chain([masks.to_owned()]).chain(tf32).chain(repeats).collect();
    Some(format!("note: {}", all.join("; ")))
}

/// The condition for the weights to be the same to the bit on another number of data-parallel ranks; `None` if it is met.
fn bit_equality_condition(plan: &RunPlan, compresses: bool) -> Option<&'static str> {
    let (shards, dp) = (plan.mesh.size(DP), plan.mesh.size(REPLICATE) * plan.mesh.size(DP));
    let each = plan.engine.zero.reduces_each_micro_batch();
    let micro_batches = plan.gradient_accumulation_steps * plan.engine.strategy.period();
    match () {
        () if plan.data_ranks() == 1 => None,
        () if plan.engine.strategy.rounds().is_some() => {
            Some("no worker is ahead of another (strategy.staleness = 0)")
        }
        () if compresses => Some("gradients are not compressed (comm.compress = \"none\")"),
        () if plan.engine.precision.reduce != Dtype::F32 => {
            Some("sums between ranks are fp32 (compute.reduce_dtype = \"fp32\")")
        }
        // What is summed over the shards is summed further, over micro-batches or replicas.
        () if !shards.is_power_of_two() && (dp > shards || each && micro_batches > 1) => {
            Some("the number of shards is a power of two")
        }
        () if (!each || dp > shards) && !micro_batches.is_power_of_two() => {
            Some("the number of micro-batches per rank and update is a power of two")
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use brigade_core::compress::Method;

    use super::*;
    use crate::settings::ComputeDtype;

    fn note(backend: Backend, sets: impl FnOnce(&mut Settings)) -> Option<String> {
        let mut settings = Settings::default();
        (settings.train.micro_batch_size, settings.train.global_batch_size) = (1, 6);
        settings.compute.backend = Backend::Cpu;
        sets(&mut settings);
        // This program need not be built for the backend.
        let plan = settings.plan(2, 1).unwrap();
        settings.compute.backend = backend;
        same_bits_note(&settings, &plan, false, false)
    }

    #[test]
    fn a_run_says_what_its_backend_cannot_promise() {
        let even = |settings: &mut Settings| settings.train.global_batch_size = 8;
        assert_eq!(note(Backend::Cpu, even), None);
        let factors_nothing = |settings: &mut Settings| {
            even(settings);
            settings.comm.compress = Method::PowerSgd;
        };
        assert_eq!(note(Backend::Cpu, factors_nothing), None, "no codes travel");
        let condition = "micro-batches per rank and update is a power of two";
        assert!(note(Backend::Cpu, |_| ()).unwrap().contains(condition));

        let mut settings = Settings::default();
        settings.compute.backend = Backend::Cpu;
        let plan = settings.plan(1, 1).unwrap();
        let tied = same_bits_note(&settings, &plan, false, true).unwrap();
        assert!(
            tied.contains("on other meshes only if") && tied.contains("pipeline.tied_gradients"),
            "{tied}"
        );

        even(&mut settings);
        settings.train.micro_batch_size = 1;
        let plan = settings.plan(2, 1).unwrap();
        // This program need not be built for MPI.
        settings.comm.collectives = CollectivesBackend::Mpi;
        assert_eq!(same_bits_note(&settings, &plan, false, false), None);
        settings.comm.order = SumOrder::Engine;
        let by_itself = same_bits_note(&settings, &plan, false, false).unwrap();
        assert!(
            by_itself.contains("only if") && by_itself.ends_with("(comm.order = \"tree\")"),
            "{by_itself}"
        );

        (settings.comm.collectives, settings.comm.order) = (CollectivesBackend::Hierarchical, SumOrder::Tree);
        let by_host = same_bits_note(&settings, &plan, false, false).unwrap();
        assert!(by_host.contains("only if each host has a power of two of ranks"), "{by_host}");
        let alone = settings.plan(1, 1).unwrap();
        assert_eq!(same_bits_note(&settings, &alone, false, false), None, "nothing is summed between ranks");

        let masks = "dropout masks are the same on every mesh";
        let wgpu = note(Backend::Wgpu, even).unwrap();
        assert!(wgpu.starts_with(&format!("note: {masks}")), "{wgpu}");
        let wgpu = note(Backend::Wgpu, |_| ()).unwrap();
        assert!(wgpu.contains(condition) && wgpu.contains(masks) && !wgpu.contains("TF32"), "{wgpu}");
        assert!(!wgpu.contains("not to repeat"), "{wgpu}");

        let cuda = note(Backend::Cuda, even).unwrap();
        assert!(cuda.contains("NCCL adds") && cuda.contains(masks) && !cuda.contains("TF32"), "{cuda}");
        assert!(cuda.contains("not to repeat to the bit"), "{cuda}");
        let in_f32 = note(Backend::Cuda, |settings| settings.compute.dtype = ComputeDtype::F32).unwrap();
        assert!(in_f32.contains("products of f32 are TF32"), "{in_f32}");
        let on_host = |settings: &mut Settings| settings.comm.collectives = CollectivesBackend::Host;
        let shared = note(Backend::Cuda, on_host).unwrap();
        let why = if cfg!(feature = "autotune") { "by timing them" } else { condition };
        assert!(shared.contains(why) && shared.contains(masks) && !shared.contains("NCCL"), "{shared}");
    }

    #[test]
    fn other_bits_on_another_mesh_are_announced() {
        let need_of = |replicas: usize, dp: usize, batch: usize, stage: u8, reduce_dtype: Dtype| {
            let mut settings = Settings::default();
            (settings.train.micro_batch_size, settings.train.global_batch_size) = (1, batch);
            (settings.zero.stage, settings.mesh.replicate) = (stage, replicas);
            settings.compute.reduce_dtype = reduce_dtype;
            bit_equality_condition(&settings.plan(dp, 1).unwrap(), false)
        };
        let need = |dp, batch, stage, reduce_dtype| need_of(1, dp, batch, stage, reduce_dtype);
        for stage in 0..4 {
            assert_eq!(need(1, 3, stage, Dtype::Bf16), None, "nothing is summed between ranks");
            assert_eq!(need(2, 8, stage, Dtype::F32), None);
            assert!(need(2, 8, stage, Dtype::Bf16).unwrap().contains("compute.reduce_dtype"));
        }
        let coded = |dp| bit_equality_condition(&Settings::default().plan(dp, 1).unwrap(), true);
        assert!(coded(2).unwrap().contains("comm.compress"));
        assert_eq!(coded(1), None, "nothing travels");
        assert!(need(2, 6, 0, Dtype::F32).unwrap().contains("micro-batches per rank"));
        assert!(need(3, 6, 3, Dtype::F32).unwrap().contains("number of shards"));
        assert_eq!(need(2, 6, 3, Dtype::F32), None);
        for stage in 1..4 {
            for batch in [6, 12] {
                let shards = need_of(2, 6, batch, stage, Dtype::F32);
                assert!(shards.unwrap().contains("number of shards"), "3 shards x 2 replicas, stage {stage}");
                assert_eq!(
                    need_of(3, 6, batch, stage, Dtype::F32),
                    None,
                    "2 shards x 3 replicas, stage {stage}"
                );
            }
            assert_eq!(need(3, 3, stage, Dtype::F32), None, "nothing is summed further, stage {stage}");
        }
    }
}
