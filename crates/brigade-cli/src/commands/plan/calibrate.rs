//! `brigade plan --calibrate`: how fast this machine's cores multiply, add and pass messages, all at once as ranks do.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade::plan::cluster::{Cluster, kind_of_gpu};
use brigade::{Backend, node_gpus};
use brigade_files::write_atomic;
use brigade_simd::activation::ActivationFunction;
use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use half::bf16;

use crate::output::print;

/// How long each measurement takes.
const TAKES: Duration = Duration::from_secs(1);

/// Rows and columns of the matrices that are multiplied: of a small model's micro-batch, and small enough that the fixed cost of a product shows.
const SIZES: [usize; 2] = [512, 64];

/// Efficiency of matrix products inside a training step, relative to isolated ones: there, operands come from memory, and messages are sent at the same time. Measured with
/// `gpt-13m` on an Intel Xeon with two cores; `--calibrate-from` learns it from a run.
const IN_A_STEP: f64 = 0.82;

/// Bytes of the buffers that are added: more than a processor's caches hold.
const BUFFER: usize = 64 << 20;

/// Values of an activation: few enough to stay in a core's cache.
const VALUES: usize = 1 << 12;

/// Bytes of a message.
const MESSAGE: usize = 1 << 20;

/// What one core does while all others do the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Cores.
    pub cores: usize,
    /// FLOP/s of large products in fp32.
    pub f32_flops: f64,
    /// FLOP/s of large products in bf16.
    pub bf16_flops: f64,
    /// The dimension at which products reach half of that.
    pub half_dimension: f64,
    /// Seconds for a value of an activation.
    pub function: f64,
    /// Bytes a second read and written.
    pub memory: f64,
    /// How many times as fast products are, and memory is, for a core while the others are idle.
    pub alone: [f64; 2],
    /// Bytes a second of messages to another core.
    pub link: f64,
    /// Seconds until an empty message arrives.
    pub latency: f64,
}

/// Measures for about ten seconds.
pub fn measure() -> Measured {
    let cores = cores();
    let [large, small] = SIZES;
    let flops = |rate: f64, size: usize| rate * 2.0 * (size as f64).powi(3);
    let product = |cores, size| flops(on_all(cores, move || f32_product(size)), size);
    let together = product(cores, large);
    let half_dimension = half_dimension(together, product(cores, small));
    let reached = (large as f64 / (large as f64 + half_dimension)).powi(3);
    // Two are read, and one is written.
    let adds = |cores| on_all(cores, adding) * 3.0 * BUFFER as f64;
    let memory = adds(cores);
    let (link, latency) = link();
    Measured {
        cores,
        f32_flops: together / reached,
        bf16_flops: flops(on_all(cores, move || bf16_product(large)), large) / reached,
        half_dimension,
        function: 1.0 / (on_all(cores, activations) * VALUES as f64),
        memory,
        alone: [product(1, large) / together, adds(1) / memory].map(|times| times.max(1.0)),
        link,
        latency,
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Where large products reach a rate and small ones another, the dimension d of `rate = peak (n / (n + d))^3` for `n x n` matrices.
fn half_dimension(large: f64, small: f64) -> f64 {
    let times = (large / small).cbrt();
    let [n, m] = SIZES.map(|size| size as f64);
    // (m + d) / m = times (n + d) / n, but for what no size explains.
    let slope = 1.0 / m - times / n;
    match times <= 1.0 {
        true => 0.0,
        false if slope <= 0.0 => n,
        false => ((times - 1.0) / slope).min(n),
    }
}

/// How often per second a core does this while this many cores do the same, for the slowest of them.
fn on_all<W: FnMut()>(cores: usize, make: impl Fn() -> W + Copy + Send + 'static) -> f64 {
    let begin = Arc::new(Barrier::new(cores));
    let core = |_| {
        let begin = Arc::clone(&begin);
        std::thread::spawn(move || {
            let mut work = make();
            work();
            begin.wait();
            let (start, mut times) = (Instant::now(), 0.0);
            while start.elapsed() < TAKES {
                work();
                times += 1.0;
            }
            times / start.elapsed().as_secs_f64()
        })
    };
    let threads: Vec<_> = (0..cores).map(core).collect();
    threads.into_iter().filter_map(|thread| thread.join().ok()).fold(f64::INFINITY, f64::min)
}

fn f32_product(size: usize) -> impl FnMut() {
    let [a, b] = [0.5, 0.25].map(|value| vec![value; size * size]);
    let mut out = vec![0.0_f32; size * size];
    move || {
        let [a, b] = [&a, &b].map(|values| Matrix::rows_of(values, [size, size]));
        matmul(a, b, MatrixMut::rows_of(&mut out, [size, size]), Product::Write, 1.0);
        black_box(&out);
    }
}

fn bf16_product(size: usize) -> impl FnMut() {
    let [a, b] = [0.5, 0.25].map(|value| vec![bf16::from_f32(value); size * size]);
    let mut out = vec![bf16::ZERO; size * size];
    move || {
        let [a, b] = [&a, &b].map(|values| Matrix::rows_of(values, [size, size]));
        matmul(a, b, MatrixMut::rows_of(&mut out, [size, size]), Product::Write, 1.0);
        black_box(&out);
    }
}

fn activations() -> impl FnMut() {
    let (mut x, mut y) = (vec![0.5_f32; VALUES], vec![0.0_f32; VALUES]);
    move || {
        ActivationFunction::Gelu.forward(&mut x, None, &mut y);
        black_box(&y);
    }
}

/// Like most kernels, it reads what it writes: a copy's stores would bypass the caches.
fn adding() -> impl FnMut() {
    let (from, mut to) = (vec![1.0_f32; BUFFER / 4], vec![0.0_f32; BUFFER / 4]);
    move || {
        to.iter_mut().zip(black_box(&from)).for_each(|(to, from)| *to += from);
        black_box(&to);
    }
}

/// Bandwidth and latency of messages from one thread to another, each copied into a shared buffer and out of it.
fn link() -> (f64, f64) {
    let (sender, receiver) = sync_channel::<Vec<u8>>(2);
    let (back, again) = sync_channel::<Vec<u8>>(2);
    let other = std::thread::spawn(move || {
        let mut mine = vec![0_u8; MESSAGE];
        while let Ok(message) = receiver.recv() {
            mine[..message.len()].copy_from_slice(&message);
            black_box(&mine);
            if back.send(message).is_err() {
                break;
            }
        }
    });
    let time = |bytes: usize| {
        let from = vec![1_u8; bytes];
        let mut buffer = vec![0_u8; bytes];
        let (start, mut times) = (Instant::now(), 0.0);
        while start.elapsed() < TAKES / 2 {
            buffer.copy_from_slice(&from);
            let sent = sender.send(std::mem::take(&mut buffer));
            buffer = match sent.ok().and_then(|()| again.recv().ok()) {
                Some(buffer) => buffer,
                None => break,
            };
            times += 1.0;
        }
        start.elapsed().as_secs_f64() / f64::max(times, 1.0)
    };
    let (round, full) = (time(0), time(MESSAGE));
    drop(sender);
    drop(other.join());
    (MESSAGE as f64 / (full - round).max(1e-9), round / 2.0)
}

impl Measured {
    /// The cluster of this machine, as TOML. `memory`: bytes of the machine.
    pub fn to_toml(self, memory: u64) -> String {
        let Self {
            cores,
            f32_flops,
            bf16_flops,
            half_dimension,
            function,
            memory: bandwidth,
            alone,
            link,
            latency,
        } = self;
        let [alone_products, alone_memory] = alone;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        // Peaks are what products reached.
        format!(
            "# This machine, as `brigade plan --calibrate` measured it with all cores at once.\n\
             kind = \"CPU\"\nnodes = 1\ndevices_per_node = {cores}\nhost_cores = {cores}\n\
             memory_gib = {:.3}\nhost_memory_gib = {:.3}\n\
             fp32_tflops = {:.6}\nbf16_tflops = {:.6}\nproduct_efficiency = {IN_A_STEP}\nhalf_dimension = {half_dimension:.2}\nfunction_nanoseconds = {:.3}\n\
             memory_gb_per_second = {:.3}\nmemory_efficiency = 1.0\n\
             alone_products = {alone_products:.3}\nalone_memory = {alone_memory:.3}\n\
             intra_node_gb_per_second = {:.3}\nintra_node_latency_microseconds = {:.2}\nlink_efficiency = 1.0\n",
            gib(memory) / cores as f64,
            gib(memory),
            f32_flops / 1e12,
            bf16_flops / 1e12,
            function * 1e9,
            bandwidth / 1e9,
            link / 1e9,
            latency * 1e6,
        )
    }
}

/// This machine if it was not measured: this many cores of the usual kind.
pub fn this_machine() -> anyhow::Result<Cluster> {
    Ok(Cluster::read(&format!("1x{}xCPU", cores()))?)
}

/// Bytes of this machine's memory.
pub fn machine_memory() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .context("/proc/meminfo has no MemTotal")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("MemTotal in /proc/meminfo")?;
    Ok(kib << 10)
}

/// The file with the description of this machine's processors, `brigade/cluster.toml` in `XDG_CONFIG_HOME` or `~/.config`; or beside it `brigade/cluster-KIND.toml`, of
/// clusters with this kind of GPU.
pub fn cluster_file(gpu: Option<&str>) -> anyhow::Result<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    let config = config.context(
        "neither XDG_CONFIG_HOME nor HOME is set, so there is nowhere to put brigade/cluster.toml",
    )?;
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let of_gpu = gpu.map(|kind| format!("-{}", kind.chars().map(plain).collect::<String>()));
    Ok(config.join(format!("brigade/cluster{}.toml", of_gpu.unwrap_or_default())))
}

/// The GPUs of this node that the program was built for, if they are of one kind that the planner knows: one of them.
pub fn own_gpu() -> Option<Cluster> {
    let gpus = node_gpus(Backend::Auto).ok()?;
    let first = gpus.first().filter(|first| gpus.iter().all(|gpu| gpu.name == first.name))?;
    kind_of_gpu(&first.name)
}

/// This machine: its GPUs as a run on such ones showed them, or else its processors as they were measured.
pub fn own_cluster() -> anyhow::Result<Cluster> {
    let gpu = own_gpu().map(|gpu| gpu.device.name);
    if let Some(kind) = &gpu {
        let file = cluster_file(Some(kind))?;
        if file.is_file() {
            return Ok(Cluster::read_file(&file)?);
        }
    }
    let file = cluster_file(None)?;
    let hint = "give --cluster, as in 2x8xH100-80GB, or run --calibrate to measure this machine";
    anyhow::ensure!(file.is_file(), "there is no --cluster and no {}: {hint}", file.display());
    let cluster = Cluster::read_file(&file)?;
    if let Some(kind) = gpu.filter(|_| cluster.is_cpu()) {
        brigade::print_stderr(format_args!(
            "note: planned for this machine's processors, which --calibrate measured, not for its GPUs; give --cluster for those, as in 1x1x{kind}"
        ));
    }
    Ok(cluster)
}

/// Saves the description of this machine's processors, or of a cluster with this kind of GPU, and says where.
pub fn keep(text: &str, gpu: Option<&str>) -> anyhow::Result<PathBuf> {
    let file = cluster_file(gpu)?;
    let written = file
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| write_atomic(&file, text.as_bytes()));
    written.with_context(|| format!("{}: cannot write it", file.display()))?;
    Ok(file)
}

/// Measures this machine, and saves the result.
pub fn run() -> anyhow::Result<()> {
    let measured = measure();
    let text = measured.to_toml(machine_memory()?);
    let file = keep(&text, None)?;
    let use_of_it = match own_gpu() {
        None => "brigade plan uses it without --cluster".to_owned(),
        Some(gpu) => format!(
            "the processors alone were measured, not the GPUs (of kind {0}); --calibrate-from RUN learns how fast these are from a run on them, with --cluster 1xNx{0}",
            gpu.device.name
        ),
    };
    print(&format!("{text}# {}: {use_of_it}\n", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade::plan::cluster::Dtype;

    #[test]
    fn what_is_measured_is_read_as_a_cluster() {
        let measured = Measured {
            cores: 4,
            f32_flops: 80e9,
            bf16_flops: 150e9,
            half_dimension: 3.0,
            function: 0.8e-9,
            memory: 12e9,
            alone: [1.1, 2.0],
            link: 5e9,
            latency: 9e-6,
        };
        let cluster = Cluster::from_toml("cluster.toml", &measured.to_toml(16 << 30)).unwrap();
        assert_eq!((cluster.devices(), cluster.device.memory, cluster.host_memory), (4, 4 << 30, 16 << 30));
        assert_eq!(cluster.device.peak(Dtype::F32), 80e9);
        assert_eq!(cluster.device.default_dtype(), Dtype::Bf16);
        assert!((cluster.intra_node.latency - 9e-6).abs() < 1e-12);
        assert!(cluster.is_cpu() && machine_memory().unwrap() > 1 << 28);
        assert_eq!(cluster.device_in_use(), cluster.device);
        let two = Cluster { devices_per_node: 2, ..cluster };
        let (between, measured) = (two.device_in_use(), two.device.memory_bandwidth);
        assert!((between.memory_bandwidth / measured - (1.0 + 2.0 / 3.0)).abs() < 1e-9);
    }

    #[test]
    fn each_kind_of_device_has_a_file() {
        let name = |gpu| cluster_file(gpu).unwrap().file_name().unwrap().to_owned();
        assert_eq!(name(None), "cluster.toml");
        assert_eq!(name(Some("H100-80GB")), "cluster-H100-80GB.toml");
        assert_eq!(name(Some("my/own GPU")), "cluster-my-own-GPU.toml");
    }

    #[test]
    fn small_products_say_what_a_dimension_costs() {
        let rate = |size: usize| (size as f64 / (size as f64 + 20.0)).powi(3);
        let [large, small] = SIZES.map(rate);
        assert!((half_dimension(large, small) - 20.0).abs() < 1e-6);
        assert_eq!(half_dimension(1.0, 1.1), 0.0);
        assert_eq!(half_dimension(1.0, 1e-9), SIZES[0] as f64);
    }
}
