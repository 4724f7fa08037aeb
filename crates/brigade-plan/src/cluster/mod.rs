//! What a plan is for: nodes, their devices, and the links between them.

mod described;
mod file;
mod kinds;
mod measured;
mod spec;

use serde::Serialize;
use thiserror::Error;

pub use kinds::{KINDS, kind, kind_of_gpu};
pub use measured::MeasuredLinks;

/// The number type of parameters and activations in forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bfloat16.
    Bf16,
    /// IEEE's half precision, for devices without bf16.
    Fp16,
    /// Single precision; products are TF32 where the device has it.
    #[serde(rename = "fp32")]
    F32,
}

impl Dtype {
    /// Bytes of a number.
    pub fn bytes(self) -> u64 {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::F32 => "fp32",
        }
    }
}

/// A device's peak FLOP/s in dense products; 0 where it has none.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Peaks {
    /// In bf16.
    pub bf16: f64,
    /// In fp16.
    pub fp16: f64,
    /// In TF32.
    pub tf32: f64,
    /// In fp32.
    pub f32: f64,
}

/// What share of their limits real kernels reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Efficiency {
    /// Large matrix products, of the peak FLOP/s.
    pub products: f64,
    /// Fused attention, of the peak FLOP/s.
    pub attention: f64,
    /// Operations that only read and write, of the memory's bandwidth.
    pub memory: f64,
    /// Links, of their bandwidth.
    pub links: f64,
}

/// One device of a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Device {
    /// Its kind, as in [`KINDS`], or the name of one that is of no kind.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of it that the driver and the libraries of collectives take.
    pub reserved: u64,
    /// Peak FLOP/s.
    pub peaks: Peaks,
    /// Bytes a second to and from its memory.
    pub memory_bandwidth: f64,
    /// Seconds that the host needs to start a kernel.
    pub launch: f64,
    /// Seconds of a step in which the host does what is neither a block nor the optimizer's: agreeing, counting, logging.
    pub step: f64,
    /// What kernels reach.
    pub efficiency: Efficiency,
    /// The dimension at which products reach half of what large ones do.
    pub half_dimension: f64,
    /// Seconds for a value of an exponential or an activation: processors compute them one after the other, GPUs while they wait for memory.
    pub function: f64,
    /// How many times as fast a core is while all others of its host are idle; 1 where devices share nothing.
    pub alone: IdleCoreSpeedup,
}

/// How many times as fast a core does this while all others of its host are idle: clocks, caches and memory are shared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdleCoreSpeedup {
    /// Products.
    pub products: f64,
    /// Reading and writing memory.
    pub memory: f64,
}

/// What carries messages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Bytes a second of one device in one direction.
    pub bandwidth: f64,
    /// Seconds until a message of no length arrives.
    pub latency: f64,
}

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank gets the whole sum.
    AllReduce,
    /// Every rank gets the whole, from shards.
    AllGather,
    /// Every rank gets its shard of the sum.
    ReduceScatter,
}

/// Nodes with devices of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cluster {
    /// How it was given.
    pub name: String,
    /// Number of nodes.
    pub nodes: usize,
    /// Devices, and so ranks, of each node.
    pub devices_per_node: usize,
    /// The devices.
    pub device: Device,
    /// Between the devices of a node.
    pub intra_node: Link,
    /// Between nodes, for each device.
    pub inter_node: Link,
    /// Bytes of memory of a node's host.
    pub host_memory: u64,
    /// Cores of a node's host. Where the devices are processors, each rank computes on one, and more ranks than cores share them.
    pub host_cores: usize,
    /// Bytes a second between a device and its host's memory.
    pub host_bandwidth: f64,
    /// Bytes a second that a node writes to the storage of checkpoints.
    pub storage_bandwidth: f64,
    /// Hours from one failure to the next, of one node; 0 where nothing fails.
    pub node_mtbf_hours: f64,
    /// Seconds from a failure until training continues: it is noticed, ranks start, and a checkpoint is read.
    pub restart: f64,
    /// Measured collectives, which then count instead of the links.
    pub measured: Option<MeasuredLinks>,
}

/// What is wrong with a cluster's description.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ClusterError {
    /// It is not of the form `NxGxKIND`.
    #[error(
        "--cluster {given} is not a cluster: it must be NODESxDEVICESxKIND, as in 2x8xH100-80GB, or a TOML file; kinds \
        are {}",
        kinds::names()
    )]
    Form {
        /// What was given.
        given: String,
    },
    /// A kind that is not known.
    #[error("--cluster {given}: there is no kind {kind}; {meant}")]
    Kind {
        /// What was given.
        given: String,
        /// The kind in it.
        kind: String,
        /// The nearest kinds.
        meant: String,
    },
    /// A value of a file, or a number of nodes or devices.
    #[error("{given}: {option} = {value} is not possible: {allowed}")]
    Value {
        /// The file, or what was given.
        given: String,
        /// The field.
        option: String,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file that is not a cluster's TOML.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Cluster {
    /// Devices of all nodes: the number of ranks.
    pub fn devices(&self) -> usize {
        self.nodes * self.devices_per_node
    }

    /// Bytes that a plan may use of a device: of processors, at most a rank's share of their host's.
    pub fn usable_memory(&self) -> u64 {
        let share = self.host_memory / self.devices_per_node.max(1) as u64;
        let memory = if self.is_cpu() { self.device.memory.min(share) } else { self.device.memory };
        memory.saturating_sub(self.device.reserved)
    }

    /// Ranks that share each core; 1 where every rank has its own, or another device.
    pub fn ranks_per_core(&self) -> f64 {
        let shared = self.devices_per_node as f64 / self.host_cores.max(1) as f64;
        if self.is_cpu() { shared.max(1.0) } else { 1.0 }
    }

    /// A device as it computes while all ranks of its node do: a core is faster the fewer others are busy, linearly from all of them to one alone.
    pub fn device_in_use(&self) -> Device {
        let mut device = self.device.clone();
        if !self.is_cpu() || self.host_cores < 2 {
            return device;
        }
        let idle = self.host_cores.saturating_sub(self.devices_per_node) as f64;
        let share = (idle / (self.host_cores - 1) as f64).min(1.0);
        let times = |alone: f64| 1.0 + (alone - 1.0) * share;
        let Peaks { bf16, fp16, tf32, f32 } = &mut device.peaks;
        for peak in [bf16, fp16, tf32, f32] {
            *peak *= times(device.alone.products);
        }
        device.memory_bandwidth *= times(device.alone.memory);
        device.function /= times(device.alone.products);
        device
    }

    /// Gives each processor its own core and memory of the host.
    fn own_host(&mut self) {
        if self.is_cpu() {
            self.host_cores = self.devices_per_node;
            self.host_memory = self.device.memory * self.devices_per_node as u64;
        }
    }

    /// Whether the devices are processors, whose memory is their host's.
    pub fn is_cpu(&self) -> bool {
        self.device.name.starts_with("CPU")
    }
}

impl Device {
    /// Peak FLOP/s of products in this type; 0 where the device has none.
    pub fn peak(&self, dtype: Dtype) -> f64 {
        match dtype {
            Dtype::Bf16 => self.peaks.bf16,
            Dtype::Fp16 => self.peaks.fp16,
            Dtype::F32 => self.peaks.tf32.max(self.peaks.f32),
        }
    }

    /// The type to train in: bf16 where the device is faster in it, else fp32.
    pub fn default_dtype(&self) -> Dtype {
        if self.peaks.bf16 > self.peaks.f32 { Dtype::Bf16 } else { Dtype::F32 }
    }
}
