//! What the ranks of `--mesh auto` compute on.

use anyhow::{bail, ensure};
use brigade::plan::cluster::{Cluster, KINDS, kind_of_gpu};
use brigade::report::{counted, memory_capacity};
use brigade::{Backend, NodeGpu, Ranks, node_gpus};

use crate::commands::plan::{cluster_file, this_machine};

/// The cluster to compute on: as given, or what this node has, once for every node, as it was measured if it was.
pub fn cluster(given: Option<&str>, backend: Backend, ranks: &Ranks) -> anyhow::Result<Cluster> {
    if let Some(given) = given {
        let cluster = Cluster::read(given)?;
        ensure!(
            cluster.devices() == ranks.world(),
            "--cluster {given} has {}, but there are {}",
            counted(cluster.devices(), "device"),
            counted(ranks.world(), "rank")
        );
        return Ok(cluster);
    }
    let mut cluster = match backend.resolved() {
        Backend::Cpu => of_cores(measured(None)?, ranks)?,
        backend => {
            let gpus = node_gpus(backend)?;
            let kind = gpus.first().and_then(|gpu| kind_of_gpu(&gpu.name)).map(|kind| kind.device.name);
            let measured = kind.map(|kind| measured(Some(&kind))).transpose()?.flatten();
            of_gpus(&gpus, measured, ranks)?
        }
    };
    (cluster.nodes, cluster.devices_per_node) = (ranks.nodes, ranks.per_node);
    cluster.name = format!("{}x{}x{}", ranks.nodes, ranks.per_node, cluster.device.name);
    Ok(cluster)
}

/// This machine's processors, or this kind of GPU, as they were measured.
fn measured(gpu: Option<&str>) -> anyhow::Result<Option<Cluster>> {
    match cluster_file(gpu) {
        Ok(file) if file.is_file() => Ok(Some(Cluster::read_file(&file)?)),
        _ => Ok(None),
    }
}

fn of_cores(measured: Option<Cluster>, ranks: &Ranks) -> anyhow::Result<Cluster> {
    let mut cluster = match measured.filter(Cluster::is_cpu) {
        Some(measured) => measured,
        None => this_machine()?,
    };
    if let Some(capacity) = memory_capacity() {
        cluster.host_memory = capacity.available;
        cluster.device.memory = capacity.available / ranks.per_node.max(1) as u64;
        cluster.device.reserved = 0;
    }
    Ok(cluster)
}

fn of_gpus(gpus: &[NodeGpu], measured: Option<Cluster>, ranks: &Ranks) -> anyhow::Result<Cluster> {
    let (nodes, per_node) = (ranks.nodes, ranks.per_node);
    let Some(first) = gpus.first() else {
        bail!(
            "--mesh auto does not know the devices of this node; say what the ranks compute on, as in --cluster {nodes}x{per_node}xH100-80GB"
        );
    };
    let used = &gpus[..per_node.clamp(1, gpus.len())];
    if let Some(other) = used.iter().find(|gpu| gpu.name != first.name) {
        bail!(
            "--mesh auto plans for GPUs of one kind, but this node has {} and {}; say with --cluster what to plan for, as in --cluster \
             {nodes}x{per_node}xH100-80GB, or give --pp, --dp and --zero",
            first.name,
            other.name
        );
    }
    let Some(kind) = kind_of_gpu(&first.name) else {
        bail!(
            "--mesh auto does not know the GPU {}; describe it with --cluster: a TOML file, or {nodes}x{per_node}xKIND with the one of {} that is most \
             like it",
            first.name,
            KINDS.join(", ")
        );
    };
    let is_it = |measured: &Cluster| measured.device.name == kind.device.name;
    let mut cluster = measured.filter(is_it).unwrap_or(kind);
    cluster.device.memory = used.iter().map(|gpu| gpu.memory).min().unwrap_or(first.memory);
    share(&mut cluster, per_node.div_ceil(used.len()).max(1));
    if let Some(capacity) = memory_capacity() {
        cluster.host_memory = capacity.available;
    }
    Ok(cluster)
}

/// Gives a rank its part of a GPU that several share: of its memory, and of what it computes and moves in a second. What is taken of the memory is that of each process.
fn share(cluster: &mut Cluster, ranks: usize) {
    let device = &mut cluster.device;
    device.memory /= ranks as u64;
    let peaks = &mut device.peaks;
    let device_rates =
        [&mut peaks.bf16, &mut peaks.fp16, &mut peaks.tf32, &mut peaks.f32, &mut device.memory_bandwidth];
    let links =
        [&mut cluster.intra_node.bandwidth, &mut cluster.inter_node.bandwidth, &mut cluster.host_bandwidth];
    device_rates.into_iter().chain(links).for_each(|rate| *rate /= ranks as f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: Ranks = Ranks { nodes: 2, per_node: 2, is_launcher: true };

    fn gpus(names: [&str; 2]) -> [NodeGpu; 2] {
        let memories = [85_000_000_000, 84_000_000_000];
        let gpu = |(name, memory): (&str, u64)| NodeGpu { name: name.into(), memory };
        [gpu((names[0], memories[0])), gpu((names[1], memories[1]))]
    }

    #[test]
    fn gpus_are_those_of_the_node() {
        let same = gpus(["NVIDIA H100 80GB HBM3"; 2]);
        let found = of_gpus(&same, None, &RANKS).unwrap();
        assert_eq!((found.device.name.as_str(), found.device.memory), ("H100-80GB", 84_000_000_000));

        // As measured, where that was such a GPU.
        let mut measured = found.clone();
        measured.device.efficiency.products = 0.5;
        let again = of_gpus(&same, Some(measured.clone()), &RANKS).unwrap();
        assert_eq!(again.device.efficiency.products, 0.5);
        let other = of_gpus(&gpus(["NVIDIA L4"; 2]), Some(measured.clone()), &RANKS).unwrap();
        assert_eq!(other.device.name, "L4");
        assert!(of_cores(Some(measured), &RANKS).unwrap().is_cpu());

        // Others than the ranks have do not count; ranks that share one have a part of it each.
        let one = Ranks { per_node: 1, ..RANKS };
        let found = of_gpus(&gpus(["NVIDIA H100 80GB HBM3", "NVIDIA L4"]), None, &one).unwrap();
        assert_eq!((found.device.name.as_str(), found.device.memory), ("H100-80GB", 85_000_000_000));
        let found = of_gpus(&same[..1], None, &RANKS).unwrap();
        assert_eq!(found.device.memory, 42_500_000_000);
        let whole = of_gpus(&same, None, &RANKS).unwrap();
        let rates = |cluster: &Cluster| {
            let (peaks, device) = (cluster.device.peaks, &cluster.device);
            let links = [cluster.intra_node.bandwidth, cluster.inter_node.bandwidth, cluster.host_bandwidth];
            let own = [peaks.bf16, peaks.fp16, peaks.tf32, peaks.f32, device.memory_bandwidth];
            own.into_iter().chain(links).collect::<Vec<f64>>()
        };
        let halves: Vec<f64> = rates(&whole).into_iter().map(|rate| rate / 2.0).collect();
        assert_eq!(rates(&found), halves);
    }

    #[test]
    fn gpus_that_are_not_known_are_named() {
        let refused = |names| of_gpus(&gpus(names), None, &RANKS).unwrap_err().to_string();
        let unknown = refused(["NVIDIA GeForce RTX 4080"; 2]);
        assert!(
            unknown.contains("the GPU NVIDIA GeForce RTX 4080;") && unknown.contains("2x2xKIND"),
            "{unknown}"
        );
        let mixed = refused(["NVIDIA H200", "NVIDIA L4"]);
        assert!(mixed.contains("has NVIDIA H200 and NVIDIA L4"), "{mixed}");
        let none = of_gpus(&[], None, &RANKS).unwrap_err().to_string();
        assert!(none.contains("as in --cluster 2x2xH100-80GB"), "{none}");
    }
}
