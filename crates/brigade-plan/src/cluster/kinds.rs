//! Devices that are known by name.
//!
//! Memory, peaks and bandwidths are those of NVIDIA's data sheets (dense products; a link's bandwidth is that of one direction): V100
//! (2017 data sheet), P100 PCIe (2016) and P4 (2016), T4 (2019), A10 (2021), A100 (2021), L4 and L40S (2023), H100 SXM, PCIe and NVL (2023), H200 (2023), B200 (2024, DGX B200); those of
//! RTX 3090 and 4090 stand in the white papers on GA102 (2021) and Ada (2022), with sums in fp32; A10G's are AWS's (2021). NVLink
//! joins H100 NVL in pairs alone, so that larger groups are as fast as PCIe. Links
//! between nodes are those of the DGX of that generation, of others one port of 100 Gbit/s. What kernels reach of them was
//! measured by many: cuBLAS 60 to 75% of the peak, less where power is short; fused attention (FlashAttention 2) 55% on A100, 40% on H100.

use super::{Cluster, Device, Efficiency, IdleCoreSpeedup, Link, Peaks};

const GIB: u64 = 1 << 30;

/// A row of the table: memory in GiB, of which GDDR5 and GDDR6 of servers (P4, T4, A10, L4, L40S) give a sixteenth to error correction; peaks in TFLOP/s of bf16, fp16, TF32 and fp32; GB/s of memory, within and between nodes (for each device)
/// and to the host; and what products and attention reach.
struct Row {
    name: &'static str,
    aliases: &'static [&'static str],
    memory: u64,
    peaks: [f64; 4],
    bandwidths: [f64; 4],
    reaches: [f64; 2],
}

const ROWS: [Row; 19] = [
    Row {
        name: "P4",
        aliases: &["P4-8GB"],
        memory: 7,
        peaks: [0.0, 0.0, 0.0, 5.5],
        bandwidths: [192.0, 12.0, 12.5, 12.0],
        reaches: [0.65, 0.35],
    },
    Row {
        name: "P100",
        aliases: &["P100-16GB", "P100-PCIE-16GB"],
        memory: 16,
        peaks: [0.0, 18.7, 0.0, 9.3],
        bandwidths: [732.0, 12.0, 12.5, 12.0],
        reaches: [0.65, 0.35],
    },
    Row {
        name: "V100-16GB",
        aliases: &["V100", "V100-SXM2-16GB"],
        memory: 16,
        peaks: [0.0, 125.0, 0.0, 15.7],
        bandwidths: [900.0, 150.0, 6.25, 12.0],
        reaches: [0.65, 0.35],
    },
    Row {
        name: "V100-32GB",
        aliases: &["V100-SXM2-32GB", "V100-SXM3-32GB"],
        memory: 32,
        peaks: [0.0, 125.0, 0.0, 15.7],
        bandwidths: [900.0, 150.0, 6.25, 12.0],
        reaches: [0.65, 0.35],
    },
    Row {
        name: "T4",
        aliases: &["T4-16GB"],
        memory: 15,
        peaks: [0.0, 65.0, 0.0, 8.1],
        bandwidths: [320.0, 12.0, 12.5, 12.0],
        reaches: [0.5, 0.35],
    },
    Row {
        name: "A100-40GB",
        aliases: &["A100-SXM4-40GB"],
        memory: 40,
        peaks: [312.0, 312.0, 156.0, 19.5],
        bandwidths: [1555.0, 300.0, 25.0, 25.0],
        reaches: [0.75, 0.55],
    },
    Row {
        name: "A100-80GB",
        aliases: &["A100", "A100-SXM4-80GB"],
        memory: 80,
        peaks: [312.0, 312.0, 156.0, 19.5],
        bandwidths: [2039.0, 300.0, 25.0, 25.0],
        reaches: [0.75, 0.55],
    },
    Row {
        name: "A10",
        aliases: &["A10-24GB"],
        memory: 22,
        peaks: [125.0, 125.0, 62.5, 31.2],
        bandwidths: [600.0, 25.0, 12.5, 25.0],
        reaches: [0.5, 0.4],
    },
    Row {
        name: "A10G",
        aliases: &["A10G-24GB"],
        memory: 22,
        peaks: [70.0, 70.0, 35.0, 35.0],
        bandwidths: [600.0, 25.0, 12.5, 25.0],
        reaches: [0.65, 0.4],
    },
    Row {
        name: "RTX-3090",
        aliases: &["GeForce-RTX-3090", "RTX3090"],
        memory: 24,
        peaks: [71.0, 71.0, 35.6, 35.6],
        bandwidths: [936.0, 25.0, 12.5, 25.0],
        reaches: [0.75, 0.55],
    },
    Row {
        name: "RTX-4090",
        aliases: &["GeForce-RTX-4090", "RTX4090"],
        memory: 24,
        peaks: [165.2, 165.2, 82.6, 82.6],
        bandwidths: [1008.0, 25.0, 12.5, 25.0],
        reaches: [0.75, 0.55],
    },
    Row {
        name: "L4",
        aliases: &["L4-24GB"],
        memory: 22,
        peaks: [121.0, 121.0, 60.0, 30.3],
        bandwidths: [300.0, 25.0, 12.5, 25.0],
        reaches: [0.5, 0.4],
    },
    Row {
        name: "L40S",
        aliases: &["L40S-48GB"],
        memory: 45,
        peaks: [362.0, 362.0, 183.0, 91.6],
        bandwidths: [864.0, 25.0, 12.5, 25.0],
        reaches: [0.55, 0.4],
    },
    Row {
        name: "H100-80GB",
        aliases: &["H100", "H100-SXM", "H100-SXM5-80GB", "H100-80GB-HBM3"],
        memory: 80,
        peaks: [989.0, 989.0, 495.0, 67.0],
        bandwidths: [3350.0, 450.0, 50.0, 50.0],
        reaches: [0.62, 0.4],
    },
    Row {
        name: "H100-PCIe",
        aliases: &["H100-PCIe-80GB"],
        memory: 80,
        peaks: [756.0, 756.0, 378.0, 51.0],
        bandwidths: [2000.0, 50.0, 12.5, 50.0],
        reaches: [0.55, 0.4],
    },
    Row {
        name: "H100-NVL",
        aliases: &["H100-NVL-94GB"],
        memory: 94,
        peaks: [835.0, 835.0, 417.0, 60.0],
        bandwidths: [3900.0, 50.0, 12.5, 50.0],
        reaches: [0.55, 0.4],
    },
    Row {
        name: "H200",
        aliases: &["H200-141GB", "H200-SXM"],
        memory: 141,
        peaks: [989.0, 989.0, 495.0, 67.0],
        bandwidths: [4800.0, 450.0, 50.0, 50.0],
        reaches: [0.62, 0.4],
    },
    Row {
        name: "B200",
        aliases: &["B200-192GB", "B200-180GB"],
        memory: 180,
        peaks: [2250.0, 2250.0, 1125.0, 75.0],
        bandwidths: [8000.0, 900.0, 50.0, 50.0],
        reaches: [0.6, 0.45],
    },
    // A core of a server's processor with AVX-512; `brigade plan --calibrate` measures the ones that are there.
    Row {
        name: "CPU",
        aliases: &["CPU-core"],
        memory: 8,
        peaks: [0.08, 0.0, 0.0, 0.08],
        bandwidths: [10.0, 4.0, 1.25, 10.0],
        reaches: [0.9, 0.5],
    },
];

/// That of GPUs' libraries: it is not known of each kind apart.
const HALF_DIMENSION: f64 = 64.0;

/// The names of all kinds.
pub const KINDS: [&str; ROWS.len()] = {
    let mut names = [""; ROWS.len()];
    let mut at = 0;
    while at < ROWS.len() {
        names[at] = ROWS[at].name;
        at += 1;
    }
    names
};

/// The names, for messages.
pub(super) fn names() -> String {
    KINDS.join(", ")
}

/// One node with one device of a kind; case does not count. `None` if it is not known.
///
/// ```
/// use brigade_plan::cluster::kind;
/// assert_eq!(kind("h100").unwrap().device.peaks.bf16, 989e12);
/// assert!(kind("H1000").is_none());
/// ```
pub fn kind(name: &str) -> Option<Cluster> {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    ROWS.iter().find(|row| is(row.name) || row.aliases.iter().any(|alias| is(alias))).map(Row::cluster)
}

/// The kind of a GPU, by the name that its driver reports: one node with one of them. `None` if it is none of the kinds.
///
/// ```
/// use brigade_plan::cluster::kind_of_gpu;
/// assert_eq!(kind_of_gpu("NVIDIA H100 80GB HBM3").unwrap().device.name, "H100-80GB");
/// assert!(kind_of_gpu("NVIDIA GeForce RTX 4080").is_none());
/// ```
pub fn kind_of_gpu(name: &str) -> Option<Cluster> {
    const MAKER: [&str; 2] = ["NVIDIA", "Tesla"];
    let words: Vec<&str> = name.split_whitespace().filter(|word| !MAKER.contains(word)).collect();
    kind(&words.join("-")).filter(|cluster| !cluster.is_cpu())
}

/// One node with one device of no kind, whose memory, peaks and bandwidths but that to the host are not known. Kernels reach as little of its peak as of any GPU in the
/// table; all else is that of other GPUs, or of processors if the name begins with `CPU`.
pub(super) fn unknown(name: &str) -> Cluster {
    let is_cpu = name.starts_with("CPU");
    let row = Row {
        name: if is_cpu { "CPU" } else { "" },
        aliases: &[],
        memory: 0,
        peaks: [0.0; 4],
        bandwidths: [0.0, 0.0, 0.0, if is_cpu { 10.0 } else { 25.0 }],
        reaches: if is_cpu { [0.9, 0.5] } else { [0.5, 0.35] },
    };
    let mut cluster = row.cluster();
    name.clone_into(&mut cluster.device.name);
    cluster
}

/// The kinds whose names are most like this one: of those that begin as it does, or else of all.
pub(super) fn nearest(name: &str) -> Vec<&'static str> {
    let plain = |text: &str| text.to_ascii_uppercase();
    let given = plain(name);
    let distance = |row: &Row| {
        let all = std::iter::once(&row.name).chain(row.aliases);
        all.map(|known| strsim::damerau_levenshtein(&plain(known), &given)).min().unwrap_or(usize::MAX)
    };
    let most = given.chars().count().div_ceil(2);
    let near = |is_among: &dyn Fn(&Row) -> bool| -> Vec<&'static str> {
        let rows = || ROWS.iter().filter(|row| is_among(row));
        let least = rows().map(distance).min().filter(|least| *least <= most);
        rows().filter(|row| Some(distance(row)) == least).map(|row| row.name).collect()
    };
    let alike = near(&|row| given.chars().next() == row.name.chars().next());
    if alike.is_empty() { near(&|_| true) } else { alike }
}

impl Row {
    fn cluster(&self) -> Cluster {
        let [bf16, fp16, tf32, f32] = self.peaks.map(|tera| tera * 1e12);
        let [memory_bandwidth, intra, inter, host] = self.bandwidths.map(|giga| giga * 1e9);
        let [products, attention] = self.reaches;
        let is_cpu = self.name == "CPU";
        Cluster {
            name: format!("1x1x{}", self.name),
            nodes: 1,
            devices_per_node: 1,
            device: Device {
                name: self.name.into(),
                memory: self.memory * GIB,
                reserved: if is_cpu { GIB / 8 } else { GIB * 3 / 2 },
                peaks: Peaks { bf16, fp16, tf32, f32 },
                memory_bandwidth,
                launch: if is_cpu { 1e-6 } else { 5e-6 },
                step: 0.0,
                efficiency: Efficiency { products, attention, memory: 0.8, links: 0.8 },
                half_dimension: HALF_DIMENSION,
                function: if is_cpu { 1e-9 } else { 0.0 },
                alone: IdleCoreSpeedup { products: 1.0, memory: 1.0 },
            },
            intra_node: Link { bandwidth: intra, latency: if is_cpu { 20e-6 } else { 4e-6 } },
            inter_node: Link { bandwidth: inter, latency: if is_cpu { 60e-6 } else { 12e-6 } },
            host_memory: if is_cpu { self.memory * GIB } else { 1024 * GIB },
            host_cores: if is_cpu { 1 } else { 96 },
            host_bandwidth: host,
            storage_bandwidth: if is_cpu { 0.5e9 } else { 2e9 },
            // 419 unexpected interruptions of 2,048 nodes in 54 days (Grattafiori et al. 2024, "The Llama 3 herd of models", section 3.3.4).
            node_mtbf_hours: if is_cpu { 0.0 } else { 6300.0 },
            restart: 300.0,
            measured: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_known_by_the_names_of_their_driver() {
        let kind_name = |name| kind_of_gpu(name).map(|cluster| cluster.device.name);
        for (name, kind) in [
            ("Tesla V100-SXM2-16GB", "V100-16GB"),
            ("Tesla V100-SXM2-32GB", "V100-32GB"),
            ("Tesla V100-SXM3-32GB", "V100-32GB"),
            ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
            ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
            ("Tesla P4", "P4"),
            ("Tesla P100-PCIE-16GB", "P100"),
            ("Tesla T4", "T4"),
            ("NVIDIA A10", "A10"),
            ("NVIDIA A10G", "A10G"),
            ("NVIDIA GeForce RTX 3090", "RTX-3090"),
            ("NVIDIA GeForce RTX 4090", "RTX-4090"),
            ("NVIDIA L4", "L4"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA H100 80GB HBM3", "H100-80GB"),
            ("NVIDIA H100 PCIe", "H100-PCIe"),
            ("NVIDIA H100 NVL", "H100-NVL"),
            ("NVIDIA H200", "H200"),
            ("NVIDIA B200", "B200"),
        ] {
            assert_eq!(kind_name(name).as_deref(), Some(kind), "{name}");
        }
        // Other links, memory or peaks than those of a kind that sounds alike.
        for name in [
            "NVIDIA A100 80GB PCIe",
            "NVIDIA A100-PCIE-40GB",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "NVIDIA H200 NVL",
            "NVIDIA L40",
            "Tesla P100-SXM2-16GB",
            "NVIDIA GeForce RTX 3090 Ti",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "CPU",
            "",
        ] {
            assert_eq!(kind_name(name), None, "{name}");
        }
    }
    #[test]
    fn misspelt_kinds_are_those_that_begin_alike() {
        for (given, meant) in [
            ("A100-SXM", &["A100-40GB", "A100-80GB"][..]),
            ("a100_80", &["A100-80GB"]),
            ("A800", &["A100-80GB"]),
            ("H100-sxm5", &["H100-80GB"]),
            ("h200-140GB", &["H200"]),
            ("H800", &["H100-80GB", "H200"]),
            ("B200-SXM", &["B200"]),
            ("v100-23gb", &["V100-32GB"]),
            ("L40", &["L4", "L40S"]),
            ("rtx_4090", &["RTX-4090"]),
            // None begins alike.
            ("GH200", &["H200"]),
            ("Tesla", &[]),
            ("", &[]),
        ] {
            assert_eq!(nearest(given), meant, "{given}");
        }
    }
}
