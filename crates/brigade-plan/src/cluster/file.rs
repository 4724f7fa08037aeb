//! Clusters in a file.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::kinds::kind;
use super::spec::in_range;
use super::{Cluster, ClusterError, MeasuredLinks};

/// A cluster as TOML has it. What is left out is that of the kind; a device that is of none says the most itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Description {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    nodes: Option<usize>,
    devices_per_node: Option<usize>,
    pub memory_gib: Option<f64>,
    reserved_gib: Option<f64>,
    pub bf16_tflops: Option<f64>,
    fp16_tflops: Option<f64>,
    pub tf32_tflops: Option<f64>,
    #[serde(alias = "f32_tflops")]
    pub fp32_tflops: Option<f64>,
    pub memory_gb_per_second: Option<f64>,
    launch_microseconds: Option<f64>,
    step_milliseconds: Option<f64>,
    product_efficiency: Option<f64>,
    attention_efficiency: Option<f64>,
    memory_efficiency: Option<f64>,
    link_efficiency: Option<f64>,
    half_dimension: Option<f64>,
    function_nanoseconds: Option<f64>,
    alone_products: Option<f64>,
    alone_memory: Option<f64>,
    pub intra_node_gb_per_second: Option<f64>,
    intra_node_latency_microseconds: Option<f64>,
    pub inter_node_gb_per_second: Option<f64>,
    inter_node_latency_microseconds: Option<f64>,
    host_memory_gib: Option<f64>,
    host_cores: Option<usize>,
    host_gb_per_second: Option<f64>,
    storage_gb_per_second: Option<f64>,
    node_mtbf_hours: Option<f64>,
    restart_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
}

/// `[measured]`: bus bandwidths in GB/s.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    #[serde(default = "message_mb")]
    message_mb: f64,
    nodes: Vec<usize>,
    all_reduce: Vec<f64>,
    all_gather: Vec<f64>,
    reduce_scatter: Vec<f64>,
}

/// The message of tables that do not say it.
fn message_mb() -> f64 {
    256.0
}

/// Bounds of numbers, far beyond any hardware.
const LEAST: f64 = 1e-6;
const MOST: f64 = 1e9;

const GIB: f64 = (1u64 << 30) as f64;

impl Cluster {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// If it cannot be read, has fields that are not known, or values that cannot be.
    pub fn read_file(path: &Path) -> Result<Self, ClusterError> {
        let file = path.display().to_string();
        let problem = |problem: String| ClusterError::File { file: file.clone(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
        Self::from_toml(&file, &text)
    }

    /// Reads the text of a TOML file; `file` is for messages.
    ///
    /// ```
    /// use brigade_plan::cluster::Cluster;
    /// let text = "kind = 'H100-80GB'\nnodes = 4\ndevices_per_node = 8\ninter_node_gb_per_second = 25.0";
    /// assert_eq!(Cluster::from_toml("a.toml", text)?.inter_node.bandwidth, 25e9);
    /// # Ok::<(), brigade_plan::cluster::ClusterError>(())
    /// ```
    ///
    /// # Errors
    /// As [`read_file`](Self::read_file).
    pub fn from_toml(file: &str, text: &str) -> Result<Self, ClusterError> {
        let given: Description = toml::from_str(text).map_err(|error| ClusterError::File {
            file: file.to_owned(),
            problem: error.to_string().trim().to_owned(),
        })?;
        let mut cluster = given.one_device(file)?;
        cluster.name = file.to_owned();
        given.lay(file, &mut cluster)?;
        Ok(cluster)
    }

    /// The TOML that [`read_file`](Self::read_file) reads as this cluster.
    pub fn to_toml(&self) -> String {
        let description = Description::of(self);
        toml::to_string(&description).unwrap_or_default()
    }
}

impl Description {
    /// Lays what is given over a cluster.
    fn lay(self, file: &str, cluster: &mut Cluster) -> Result<(), ClusterError> {
        let wrong = |option: &str, value: String, allowed: &str| ClusterError::Value {
            given: file.to_owned(),
            option: option.to_owned(),
            value,
            allowed: allowed.to_owned(),
        };
        let device = &mut cluster.device;
        let Cluster { intra_node, inter_node, .. } = cluster;
        let numbers = [
            ("bf16_tflops", self.bf16_tflops, 1e12, &mut device.peaks.bf16),
            ("fp16_tflops", self.fp16_tflops, 1e12, &mut device.peaks.fp16),
            ("tf32_tflops", self.tf32_tflops, 1e12, &mut device.peaks.tf32),
            ("fp32_tflops", self.fp32_tflops, 1e12, &mut device.peaks.f32),
            ("launch_microseconds", self.launch_microseconds, 1e-6, &mut device.launch),
            ("step_milliseconds", self.step_milliseconds, 1e-3, &mut device.step),
            ("function_nanoseconds", self.function_nanoseconds, 1e-9, &mut device.function),
            ("half_dimension", self.half_dimension, 1.0, &mut device.half_dimension),
            (
                "intra_node_latency_microseconds",
                self.intra_node_latency_microseconds,
                1e-6,
                &mut intra_node.latency,
            ),
            (
                "inter_node_latency_microseconds",
                self.inter_node_latency_microseconds,
                1e-6,
                &mut inter_node.latency,
            ),
            ("node_mtbf_hours", self.node_mtbf_hours, 1.0, &mut cluster.node_mtbf_hours),
            ("restart_seconds", self.restart_seconds, 1.0, &mut cluster.restart),
        ];
        for (option, given, unit, target) in numbers {
            let Some(value) = given else { continue };
            if !(0.0..=MOST).contains(&value) {
                return Err(wrong(option, value.to_string(), "a number from 0 to 1e9"));
            }
            *target = value * unit;
        }
        let above_zero = [
            ("memory_gb_per_second", self.memory_gb_per_second, 1e9, &mut device.memory_bandwidth),
            ("intra_node_gb_per_second", self.intra_node_gb_per_second, 1e9, &mut intra_node.bandwidth),
            ("inter_node_gb_per_second", self.inter_node_gb_per_second, 1e9, &mut inter_node.bandwidth),
            ("host_gb_per_second", self.host_gb_per_second, 1e9, &mut cluster.host_bandwidth),
            ("storage_gb_per_second", self.storage_gb_per_second, 1e9, &mut cluster.storage_bandwidth),
        ];
        for (option, given, unit, target) in above_zero {
            let Some(value) = given else { continue };
            if !(LEAST..=MOST).contains(&value) {
                return Err(wrong(option, value.to_string(), "a number from 1e-6 to 1e9"));
            }
            *target = value * unit;
        }
        let shares = [
            ("product_efficiency", self.product_efficiency, &mut device.efficiency.products),
            ("attention_efficiency", self.attention_efficiency, &mut device.efficiency.attention),
            ("memory_efficiency", self.memory_efficiency, &mut device.efficiency.memory),
            ("link_efficiency", self.link_efficiency, &mut device.efficiency.links),
        ];
        for (option, given, target) in shares {
            let Some(value) = given else { continue };
            if !(value > 0.0 && value <= 1.0) {
                return Err(wrong(option, value.to_string(), "above 0 and at most 1"));
            }
            *target = value;
        }
        let sizes = [
            ("memory_gib", self.memory_gib, &mut device.memory),
            ("reserved_gib", self.reserved_gib, &mut device.reserved),
            ("host_memory_gib", self.host_memory_gib, &mut cluster.host_memory),
        ];
        for (option, given, target) in sizes {
            let Some(value) = given else { continue };
            if !(value.is_finite() && (0.0..1e9).contains(&value)) {
                return Err(wrong(option, value.to_string(), "a number of GiB from 0 to 1e9"));
            }
            *target = (value * GIB) as u64;
        }
        let at_least_one = [
            ("alone_products", self.alone_products, &mut device.alone.products),
            ("alone_memory", self.alone_memory, &mut device.alone.memory),
        ];
        for (option, given, target) in at_least_one {
            let Some(value) = given else { continue };
            if !(1.0..=100.0).contains(&value) {
                return Err(wrong(option, value.to_string(), "from 1 to 100 times as fast"));
            }
            *target = value;
        }
        let counts = [
            ("nodes", self.nodes, &mut cluster.nodes),
            ("devices_per_node", self.devices_per_node, &mut cluster.devices_per_node),
            ("host_cores", self.host_cores, &mut cluster.host_cores),
        ];
        for (option, given, target) in counts {
            let Some(value) = given else { continue };
            in_range(file, option, value)?;
            *target = value;
        }
        let (cores, memory) = (cluster.host_cores, cluster.host_memory);
        cluster.own_host();
        self.host_cores.inspect(|_| cluster.host_cores = cores);
        self.host_memory_gib.inspect(|_| cluster.host_memory = memory);
        in_range(file, "nodes x devices_per_node", cluster.nodes.saturating_mul(cluster.devices_per_node))?;
        if let Some(measured) = self.measured {
            cluster.measured = Some(measured.checked(file)?);
        }
        Ok(())
    }

    fn of(cluster: &Cluster) -> Self {
        let device = &cluster.device;
        let gib = |bytes: u64| Some(bytes as f64 / GIB);
        let is_kind = kind(&device.name).is_some();
        Self {
            kind: is_kind.then(|| device.name.clone()),
            name: (!is_kind).then(|| device.name.clone()),
            nodes: Some(cluster.nodes),
            devices_per_node: Some(cluster.devices_per_node),
            memory_gib: gib(device.memory),
            reserved_gib: gib(device.reserved),
            bf16_tflops: Some(device.peaks.bf16 / 1e12),
            fp16_tflops: Some(device.peaks.fp16 / 1e12),
            tf32_tflops: Some(device.peaks.tf32 / 1e12),
            fp32_tflops: Some(device.peaks.f32 / 1e12),
            memory_gb_per_second: Some(device.memory_bandwidth / 1e9),
            launch_microseconds: Some(device.launch * 1e6),
            step_milliseconds: Some(device.step * 1e3),
            product_efficiency: Some(device.efficiency.products),
            attention_efficiency: Some(device.efficiency.attention),
            memory_efficiency: Some(device.efficiency.memory),
            link_efficiency: Some(device.efficiency.links),
            half_dimension: Some(device.half_dimension),
            function_nanoseconds: Some(device.function * 1e9),
            alone_products: Some(device.alone.products),
            alone_memory: Some(device.alone.memory),
            intra_node_gb_per_second: Some(cluster.intra_node.bandwidth / 1e9),
            intra_node_latency_microseconds: Some(cluster.intra_node.latency * 1e6),
            inter_node_gb_per_second: Some(cluster.inter_node.bandwidth / 1e9),
            inter_node_latency_microseconds: Some(cluster.inter_node.latency * 1e6),
            host_memory_gib: gib(cluster.host_memory),
            host_cores: Some(cluster.host_cores),
            host_gb_per_second: Some(cluster.host_bandwidth / 1e9),
            storage_gb_per_second: Some(cluster.storage_bandwidth / 1e9),
            node_mtbf_hours: Some(cluster.node_mtbf_hours),
            restart_seconds: Some(cluster.restart),
            measured: cluster.measured.as_ref().map(|links| {
                let giga = |bytes: &[f64]| bytes.iter().map(|bytes| bytes / 1e9).collect();
                Measured {
                    message_mb: links.message / 1e6,
                    nodes: links.nodes.clone(),
                    all_reduce: giga(&links.all_reduce),
                    all_gather: giga(&links.all_gather),
                    reduce_scatter: giga(&links.reduce_scatter),
                }
            }),
        }
    }
}

impl Measured {
    fn checked(self, file: &str) -> Result<MeasuredLinks, ClusterError> {
        let wrong = |option: &str, value: String, allowed: &str| ClusterError::Value {
            given: file.to_owned(),
            option: format!("measured.{option}"),
            value,
            allowed: allowed.to_owned(),
        };
        let Self { message_mb, nodes, all_reduce, all_gather, reduce_scatter } = self;
        if !(message_mb.is_finite() && message_mb > 0.0) {
            return Err(wrong("message_mb", message_mb.to_string(), "a number of MB above 0"));
        }
        let rises =
            nodes.windows(2).all(|pair| pair[0] < pair[1]) && nodes.first().is_some_and(|first| *first > 0);
        if !rises {
            return Err(wrong(
                "nodes",
                format!("{nodes:?}"),
                "numbers of nodes, each larger than the one before",
            ));
        }
        let rows =
            [("all_reduce", &all_reduce), ("all_gather", &all_gather), ("reduce_scatter", &reduce_scatter)];
        for (option, row) in rows {
            if row.len() != nodes.len() || !row.iter().all(|value| value.is_finite() && *value > 0.0) {
                let allowed = "a number of GB/s above 0 for each number in measured.nodes";
                return Err(wrong(option, format!("{row:?}"), allowed));
            }
        }
        let bytes = |row: Vec<f64>| row.into_iter().map(|giga| giga * 1e9).collect();
        Ok(MeasuredLinks {
            message: message_mb * 1e6,
            nodes,
            all_reduce: bytes(all_reduce),
            all_gather: bytes(all_gather),
            reduce_scatter: bytes(reduce_scatter),
        })
    }
}
