//! Ranks on the cores of a host.

use brigade_plan::cluster::Cluster;
use brigade_plan::model::ModelShape;
use brigade_plan::search::{Axes, PlanEvaluation, Workload, plan};

/// A host of this many cores and ranks.
fn host(cores: usize, ranks: usize) -> Cluster {
    let text = format!(
        "kind = 'CPU'\ndevices_per_node = {ranks}\nhost_cores = {cores}\nhost_memory_gib = 32.0\nalone_products = 1.2\nalone_memory = 2.0"
    );
    Cluster::from_toml("host.toml", &text).unwrap()
}

/// The step of a model with this many stages.
fn step(cluster: Cluster, pp: usize) -> PlanEvaluation {
    let model = ModelShape::llama("small", 8, 512, 8, 8, 1408, 4096, false);
    let workload = Workload::new(model, cluster, 256, 16);
    let axes =
        Axes { pp: vec![pp], zero: vec![0], micro_batches: vec![1], offload: false, ..Axes::default() };
    plan(&workload, &axes, 1).unwrap().best[0].clone()
}

#[test]
fn cores_are_busy_where_ranks_share_them() {
    let own = step(host(4, 4), 4);
    let shared = step(host(2, 4), 4);
    let parts = shared.parts;
    let busy = parts.compute + parts.recompute + parts.optimizer + parts.host;
    assert!(parts.cores > 0.0 && (shared.seconds / (2.0 * busy) - 1.0).abs() < 1e-9, "{shared:?}");
    assert!(own.parts.cores == 0.0 && step("1x4xV100-16GB".parse().unwrap(), 4).parts.cores == 0.0);
    // What a stage waits for another, a core computes for others.
    assert!(own.parts.bubble > 0.1 * own.seconds, "{own:?}");
    assert!((1.2..1.9).contains(&(shared.seconds / own.seconds)), "{own:?} {shared:?}");
}

#[test]
fn a_core_is_faster_alone() {
    let rates = |ranks| {
        let device = host(3, ranks).device_in_use();
        [device.peaks.f32 / 0.08e12, device.memory_bandwidth / 10e9]
    };
    for (ranks, expected) in [(1, [1.2, 2.0]), (2, [1.1, 1.5]), (3, [1.0, 1.0]), (6, [1.0, 1.0])] {
        for (rate, expected) in rates(ranks).into_iter().zip(expected) {
            assert!((rate - expected).abs() < 1e-9, "{ranks} ranks: {rate}");
        }
    }
}

#[test]
fn ranks_share_the_memory_of_their_host() {
    let usable = |cluster: &Cluster| cluster.usable_memory() + cluster.device.reserved;
    assert_eq!(usable(&host(2, 8)), 4 << 30);
    let plain: Cluster = "2x16xCPU".parse().unwrap();
    assert_eq!((usable(&plain), plain.host_cores, plain.host_memory), (8 << 30, 16, 128 << 30));
}
