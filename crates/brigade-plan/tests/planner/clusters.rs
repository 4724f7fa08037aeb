//! Descriptions of clusters.

use brigade_plan::cluster::{Cluster, Collective, Dtype, KINDS, kind};
use brigade_plan::model::ModelShape;
use brigade_plan::report::render;
use brigade_plan::search::{Axes, Workload, plan};
use brigade_plan::time::{Network, PlannedAlgorithm};

#[test]
fn every_kind_is_complete_and_goes_through_a_file() {
    for name in KINDS {
        let cluster: Cluster = format!("2x4x{name}").parse().unwrap();
        assert_eq!((cluster.devices(), cluster.device.name.as_str()), (8, name));
        assert!(cluster.device.peak(cluster.device.default_dtype()) > 0.0 && cluster.usable_memory() > 0);
        let again = Cluster::from_toml(&cluster.name, &cluster.to_toml()).unwrap();
        let same = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs();
        assert!(same(again.device.peak(Dtype::F32), cluster.device.peak(Dtype::F32)));
        assert_eq!((again.nodes, again.devices_per_node, again.host_cores), (2, 4, cluster.host_cores));
        assert!(again.device.memory.abs_diff(cluster.device.memory) < 2);
    }
    let peaks = [
        ("A100", 312e12),
        ("H100", 989e12),
        ("H100-PCIe", 756e12),
        ("H100-NVL", 835e12),
        ("H200", 989e12),
        ("B200", 2.25e15),
        ("L40S", 362e12),
    ];
    for (name, peak) in peaks {
        assert_eq!(kind(name).unwrap().device.peak(Dtype::Bf16), peak, "{name}");
    }
    assert_eq!(kind("V100").unwrap().device.default_dtype(), Dtype::F32);
}

#[test]
fn what_is_wrong_is_said() {
    for (given, said) in [
        ("2x8xH10-80GB", "did you mean H100-80GB?"),
        ("2x8xh200s", "did you mean H200?"),
        ("2x8xA100-80G", "did you mean A100-80GB?"),
        ("2x8xTPU-v5p-pod-slice", "kinds are P4, P100, V100-16GB"),
        ("8xH100", "NODESxDEVICESxKIND"),
        ("0x8xH100", "from 1 to"),
        ("9999999x9999999xH100", "from 1 to"),
        ("axbxc", "NODESxDEVICESxKIND"),
        ("nowhere.toml", "nowhere.toml"),
    ] {
        let error = Cluster::read(given).unwrap_err().to_string();
        assert!(error.contains(said), "{given}: {error}");
    }
    for (text, said) in [
        ("kind = 'H100'\nmemory = 3", "unknown field `memory`"),
        ("kind = 'H100'\nmemory_gib = -3.0", "memory_gib = -3"),
        ("kind = 'H100'\nproduct_efficiency = 1.5", "at most 1"),
        ("kind = 'H100'\nnodes = 0", "nodes = 0"),
        (
            "kind = 'H100'\n[measured]\nnodes = [2, 1]\nall_reduce = [1.0, 1.0]\nall_gather = [1.0, 1.0]\nreduce_scatter = [1.0, 1.0]",
            "measured.nodes",
        ),
        (
            "kind = 'H100'\n[measured]\nnodes = [1, 2]\nall_reduce = [1.0]\nall_gather = [1.0, 1.0]\nreduce_scatter = [1.0, 1.0]",
            "measured.all_reduce",
        ),
        ("", "`kind` supplies the values missing from the file"),
        (
            "kind = 'H10'",
            "there is no kind H10; did you mean H100-80GB?; without a known kind, memory_gib, bf16_tflops (or",
        ),
        (
            "name = 'MI300X'\nmemory_gib = 192.0\nbf16_tflops = 1307.0\nintra_node_gb_per_second = 400.0",
            "MI300X has no `kind`; without a known kind, memory_gb_per_second, inter_node_gb_per_second must be given",
        ),
        ("kind = 'CPU'\nname = 'EPYC'", "name = EPYC is not possible"),
        ("kind = 'H100'\nname = 'CPU-like'", "name = CPU-like is not possible"),
        ("nodes = 2\ndevices_per_node = 8", "kinds are P4, P100, V100-16GB"),
    ] {
        let error = Cluster::from_toml("a.toml", text).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

#[test]
fn a_file_describes_devices_of_no_kind() {
    let numbers = "memory_gib = 192.0\nbf16_tflops = 1307.0\nmemory_gb_per_second = 5300.0\nintra_node_gb_per_second = 400.0\ninter_node_gb_per_second = 50.0";
    for name in ["kind", "name"] {
        let text = format!("{name} = 'MI300X'\nnodes = 2\ndevices_per_node = 8\n{numbers}");
        let cluster = Cluster::from_toml("a.toml", &text).unwrap();
        let device = &cluster.device;
        assert_eq!((cluster.devices(), device.name.as_str(), device.memory), (16, "MI300X", 192 << 30));
        assert_eq!((device.peak(Dtype::Bf16), device.default_dtype()), (1307e12, Dtype::Bf16));
        assert_eq!((device.memory_bandwidth, cluster.intra_node.bandwidth), (5.3e12, 400e9));
        let model = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
        let plan = plan(&Workload::new(model, cluster.clone(), 4096, 64), &Axes::default(), 1).unwrap();
        assert!((0.2..0.6).contains(&plan.best[0].mfu), "{}", plan.best[0].mfu);
        let again = Cluster::from_toml("a.toml", &cluster.to_toml()).unwrap();
        assert_eq!((again.device.name.as_str(), again.device.memory), ("MI300X", 192 << 30));
    }
    // Processors by their names; a name beside a kind only names it.
    let processor = Cluster::from_toml("a.toml", &format!("name = 'CPU EPYC'\n{numbers}")).unwrap();
    assert!(processor.is_cpu() && processor.host_memory == 192 << 30);
    let named = Cluster::from_toml("a.toml", "kind = 'H100'\nname = 'H100-96GB'\nmemory_gib = 96.0").unwrap();
    assert_eq!((named.device.name.as_str(), named.device.peak(Dtype::Bf16)), ("H100-96GB", 989e12));
}

#[test]
fn collectives_cost_what_their_algorithms_send() {
    let mut cluster: Cluster = "4x8xH100".parse().unwrap();
    cluster.device.efficiency.links = 1.0;
    let network = |algorithm| Network::new(&cluster, algorithm);
    let ring = network(PlannedAlgorithm::Ring);
    let within = ring.ranks(8, 1);
    assert_eq!((within.per_node, within.nodes), (8, 1));
    let seconds = ring.collective(Collective::AllReduce, 1e9, within);
    assert!((seconds - (14.0 * 4e-6 + 1.75 * 1e9 / 450e9)).abs() < 1e-12);
    let half = ring.collective(Collective::AllGather, 1e9, within);
    assert!((2.0 * half - seconds).abs() < 1e-12);
    // Over nodes the ring leaves each by the links of all its ranks there; every second rank has half of them.
    let all = ring.ranks(32, 1);
    let seconds = ring.collective(Collective::AllReduce, 1e9, all);
    assert!((seconds - (62.0 * 12e-6 + 2.0 * 31.0 / 32.0 * 1e9 / 400e9)).abs() < 1e-12);
    let sparse = ring.ranks(16, 2);
    assert_eq!((sparse.per_node, sparse.nodes), (4, 4));
    let seconds = ring.collective(Collective::AllReduce, 1e9, sparse);
    assert!((seconds - (30.0 * 12e-6 + 2.0 * 15.0 / 16.0 * 1e9 / 200e9)).abs() < 1e-12);
    // Small messages are quicker along trees, and hierarchies send less between nodes.
    let small = |algorithm| network(algorithm).collective(Collective::AllReduce, 1e4, all);
    assert!(small(PlannedAlgorithm::Tree) < small(PlannedAlgorithm::Ring));
    assert!(small(PlannedAlgorithm::Auto) <= small(PlannedAlgorithm::Tree));
    assert!(small(PlannedAlgorithm::Hierarchical) < small(PlannedAlgorithm::Ring));
    // Everybody at once has one latency, and each rank sends its part of the sum to each of the other nodes' ranks over its own link. Halving has a latency for
    // each time that ranks pair up, neighbours first, and sends as little between nodes as a hierarchy.
    let cost = |algorithm| network(algorithm).collective(Collective::AllReduce, 1e9, all);
    let inter = cluster.inter_node.bandwidth * cluster.device.efficiency.links;
    let intra = cluster.intra_node.bandwidth * cluster.device.efficiency.links;
    let flat = 2.0 * 12e-6 + 2.0 * 24.0 / 32.0 * 1e9 / inter;
    assert!((cost(PlannedAlgorithm::Flat) - flat).abs() < 1e-12, "{} {flat}", cost(PlannedAlgorithm::Flat));
    let bytes = 2.0 * (7.0 / 8.0 * 1e9 / intra + 3.0 / 4.0 * (1e9 / 8.0) / inter);
    let halving = 2.0 * 5.0 * 12e-6 + bytes;
    assert!(
        (cost(PlannedAlgorithm::Halving) - halving).abs() < 1e-12,
        "{} {halving}",
        cost(PlannedAlgorithm::Halving)
    );
    // Processors have Brigade's own: flat on one node, in levels over several.
    let cores: Cluster = "2x4xCPU".parse().unwrap();
    let own = |algorithm, size| {
        let network = Network::new(&cores, algorithm);
        network.collective(Collective::AllReduce, 1e6, network.ranks(size, 1))
    };
    assert_eq!(own(PlannedAlgorithm::Auto, 4), own(PlannedAlgorithm::Flat, 4));
    assert_eq!(own(PlannedAlgorithm::Auto, 8), own(PlannedAlgorithm::Hierarchical, 8));
    assert_eq!(ring.collective(Collective::AllReduce, 1e9, ring.ranks(1, 1)), 0.0);
}

/// 64 nodes of 8 H100 with slow links between them, and collectives measured over these numbers of nodes.
fn slow_links(nodes: &[usize], giga: &[f64]) -> Cluster {
    let table = format!(
        "[measured]\nnodes = {nodes:?}\nall_reduce = {giga:?}\nall_gather = {giga:?}\nreduce_scatter = {giga:?}"
    );
    let table = if nodes.is_empty() { "" } else { &table };
    let text =
        format!("kind = 'H100'\nnodes = 64\ndevices_per_node = 8\ninter_node_gb_per_second = 3.0\n{table}");
    Cluster::from_toml("slow.toml", &text).unwrap()
}

#[test]
fn collectives_beyond_those_measured_are_no_faster_than_the_links() {
    let seconds = |cluster: &Cluster, size, stride, bytes| {
        let network = Network::new(cluster, PlannedAlgorithm::Auto);
        let ranks = network.ranks(size, stride);
        [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter]
            .map(|collective| network.collective(collective, bytes, ranks))
    };
    let links = slow_links(&[], &[]);
    let (one_node, two) = (slow_links(&[1], &[300.0]), slow_links(&[1, 2], &[300.0, 250.0]));
    for (size, stride) in [(512, 1), (64, 8), (128, 2), (32, 1)] {
        for bytes in [1e3, 1e6, 256e6, 1e10] {
            let without = seconds(&links, size, stride, bytes);
            assert_eq!(seconds(&one_node, size, stride, bytes), without, "one node says nothing of several");
            for (with, without) in seconds(&two, size, stride, bytes).iter().zip(without) {
                assert!(*with >= 0.999999 * without, "{size} ranks, {bytes} bytes: {with} and {without}");
            }
        }
    }
    // What was measured counts where it was, and stays as much slower than the links where it was not.
    assert!(seconds(&two, 16, 1, 1e9)[0] < 0.1 * seconds(&links, 16, 1, 1e9)[0]);
    let slower = slow_links(&[1, 2], &[300.0, 5.0]);
    assert!(seconds(&slower, 512, 1, 256e6)[1] > 2.0 * seconds(&links, 512, 1, 256e6)[1]);
    assert_eq!(seconds(&slow_links(&[2], &[5.0]), 8, 1, 1e9), seconds(&links, 8, 1, 1e9));
}

#[test]
fn plans_say_what_was_not_measured() {
    let planned = |cluster: Cluster| {
        let model = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
        let workload = Workload::new(model, cluster, 4096, 512);
        let plan = plan(&workload, &Axes::default(), 1).unwrap();
        (plan.best[0].seconds, render(&workload, &plan, &"model".into()))
    };
    let (without, text) = planned(slow_links(&[], &[]));
    assert!(!text.contains("measured"), "{text}");
    let (with, text) = planned(slow_links(&[1], &[300.0]));
    assert!(with >= 0.999 * without, "{with} s, without the table {without} s");
    assert!(text.contains("  note    collectives were measured within one node only; "), "{text}");
    let (with, text) = planned(slow_links(&[1, 4], &[300.0, 15.0]));
    assert!(with >= 0.999 * without, "{with} s, without the table {without} s");
    assert!(
        text.contains("  note    collectives were measured over at most 4 nodes; for up to 64, "),
        "{text}"
    );
}

#[test]
fn groups_that_straddle_nodes_use_the_links_between_them() {
    let cluster: Cluster = "3x8xH100".parse().unwrap();
    let network = Network::new(&cluster, PlannedAlgorithm::Ring);
    let placed = |size, stride| {
        let group = network.ranks(size, stride);
        (group.nodes, group.per_node)
    };
    // Of four groups of six, the second has two ranks on one node and four on the next.
    assert_eq!([placed(6, 1), placed(12, 1), placed(6, 2)], [(2, 2), (2, 4), (2, 2)]);
    assert_eq!([placed(8, 1), placed(24, 1), placed(12, 2), placed(3, 8)], [(1, 8), (3, 8), (3, 4), (3, 1)]);
    let seconds = |size| network.collective(Collective::ReduceScatter, 1e9, network.ranks(size, 1));
    assert!(seconds(6) > 3.0 * seconds(8), "{} {}", seconds(6), seconds(8));
}
