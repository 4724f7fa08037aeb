//! `brigade plan --calibrate`: how fast this machine's cores multiply, copy and pass messages, all at once as ranks do.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_files::write_atomic;
use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use half::bf16;

use crate::output::print;

/// How long each of the measurements takes.
const TAKES: Duration = Duration::from_secs(2);

/// Rows and columns of the matrices that are multiplied: those of a micro-batch of a small model.
const SIZE: usize = 512;

/// Bytes of the buffers that are copied: more than a processor's caches hold.
const BUFFER: usize = 64 << 20;

/// Bytes of a message.
const MESSAGE: usize = 1 << 20;

/// What one core does while all others do the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Cores.
    pub cores: usize,
    /// FLOP/s of products in fp32.
    pub f32_flops: f64,
    /// FLOP/s of products in bf16.
    pub bf16_flops: f64,
    /// Bytes a second read and written.
    pub memory: f64,
    /// Bytes a second of messages to another core.
    pub link: f64,
    /// Seconds until an empty message arrives.
    pub latency: f64,
}

/// Measures for some ten seconds.
pub fn measure() -> Measured {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let products = |work: fn() -> Box<dyn FnMut()>| on_all(cores, work) * 2.0 * (SIZE as f64).powi(3);
    let (link, latency) = link();
    Measured {
        cores,
        f32_flops: products(f32_product),
        bf16_flops: products(bf16_product),
        memory: on_all(cores, copying) * 2.0 * BUFFER as f64,
        link,
        latency,
    }
}

/// How often a core does this in a second while all others do the same: the slowest of them.
fn on_all(cores: usize, make: fn() -> Box<dyn FnMut()>) -> f64 {
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

fn f32_product() -> Box<dyn FnMut()> {
    let (a, b, mut out) =
        (vec![0.5_f32; SIZE * SIZE], vec![0.25_f32; SIZE * SIZE], vec![0.0_f32; SIZE * SIZE]);
    Box::new(move || {
        let [a, b] = [&a, &b].map(|values| Matrix::rows_of(values, [SIZE, SIZE]));
        matmul(a, b, MatrixMut::rows_of(&mut out, [SIZE, SIZE]), Product::Write, 1.0);
        black_box(&out);
    })
}

fn bf16_product() -> Box<dyn FnMut()> {
    let [a, b] = [0.5, 0.25].map(|value| vec![bf16::from_f32(value); SIZE * SIZE]);
    let mut out = vec![bf16::ZERO; SIZE * SIZE];
    Box::new(move || {
        let [a, b] = [&a, &b].map(|values| Matrix::rows_of(values, [SIZE, SIZE]));
        matmul(a, b, MatrixMut::rows_of(&mut out, [SIZE, SIZE]), Product::Write, 1.0);
        black_box(&out);
    })
}

fn copying() -> Box<dyn FnMut()> {
    let (from, mut to) = (vec![1_u8; BUFFER], vec![0_u8; BUFFER]);
    Box::new(move || {
        to.copy_from_slice(black_box(&from));
        black_box(&to);
    })
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
        let Self { cores, f32_flops, bf16_flops, memory: bandwidth, link, latency } = self;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        // Peaks are what products reached.
        format!(
            "# This machine, as `brigade plan --calibrate` measured it with all cores at once.\n\
             kind = \"CPU\"\nnodes = 1\ndevices_per_node = {cores}\nhost_cores = {cores}\n\
             memory_gib = {:.3}\nhost_memory_gib = {:.3}\n\
             f32_tflops = {:.6}\nbf16_tflops = {:.6}\nproduct_efficiency = 1.0\n\
             memory_gb_per_second = {:.3}\nmemory_efficiency = 1.0\n\
             intra_node_gb_per_second = {:.3}\nintra_node_latency_microseconds = {:.2}\nlink_efficiency = 1.0\n",
            gib(memory) / cores as f64,
            gib(memory),
            f32_flops / 1e12,
            bf16_flops / 1e12,
            bandwidth / 1e9,
            link / 1e9,
            latency * 1e6,
        )
    }
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

/// Where the description of this machine is kept: `brigade/cluster.toml` in `XDG_CONFIG_HOME` or `~/.config`.
pub fn cluster_file() -> anyhow::Result<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    let config = config
        .context("neither XDG_CONFIG_HOME nor HOME is set, so there is no place for brigade/cluster.toml")?;
    Ok(config.join("brigade/cluster.toml"))
}

/// Keeps the description of a machine or cluster, and says where.
pub fn keep(text: &str) -> anyhow::Result<PathBuf> {
    let file = cluster_file()?;
    let written = file
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| write_atomic(&file, text.as_bytes()));
    written.with_context(|| format!("{}: cannot write it", file.display()))?;
    Ok(file)
}

/// Measures this machine, and keeps the result.
pub fn run() -> anyhow::Result<()> {
    let measured = measure();
    let text = measured.to_toml(machine_memory()?);
    let file = keep(&text)?;
    print(&format!("{text}# {}: brigade plan takes it where --cluster is not given\n", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade::plan::cluster::{Cluster, Dtype};

    #[test]
    fn what_is_measured_is_read_as_a_cluster() {
        let measured =
            Measured { cores: 4, f32_flops: 80e9, bf16_flops: 150e9, memory: 12e9, link: 5e9, latency: 9e-6 };
        let cluster = Cluster::from_toml("cluster.toml", &measured.to_toml(16 << 30)).unwrap();
        assert_eq!((cluster.devices(), cluster.device.memory, cluster.host_memory), (4, 4 << 30, 16 << 30));
        assert_eq!(cluster.device.peak(Dtype::F32), 80e9);
        assert_eq!(cluster.device.default_dtype(), Dtype::Bf16);
        assert!((cluster.intra_node.latency - 9e-6).abs() < 1e-12);
        assert!(cluster.is_cpu() && machine_memory().unwrap() > 1 << 28);
    }
}
