//! What the figures depend on: the machine, and the versions of what was measured.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::runner::Peer;
use crate::cargo;

/// A load above this disturbs the figures.
const IDLE: f64 = 0.3;

/// Names and values for the page. Warns on the terminal if the machine is busy.
pub fn describe(peer: Option<&Peer>) -> Result<Vec<(&'static str, String)>> {
    let cpus = read("/proc/cpuinfo");
    let model = field(&cpus, "model name").unwrap_or("unknown");
    let memory = field(&read("/proc/meminfo"), "MemTotal").and_then(gibibytes).unwrap_or("unknown".into());
    let load = read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned();
    if load.parse::<f64>().is_ok_and(|load| load > IDLE) {
        eprintln!("warning: the machine is busy (load {load}); its figures will be wrong");
    }
    let lock = std::fs::read_to_string(cargo::root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let none = || "not installed (benches/peers/README.md says how)".to_owned();
    Ok(vec![
        ("CPU", model.to_owned()),
        ("cores", cores().to_string()),
        ("memory", memory),
        ("kernel", format!("Linux {}", read("/proc/sys/kernel/osrelease").trim())),
        ("load before", load),
        ("rustc", rustc()?),
        ("burn", cargo::locked(&lock, "burn").context("Cargo.lock does not name burn")?.to_owned()),
        ("torch", peer.map_or_else(none, |peer| format!("{} (Python {})", peer.torch, peer.python))),
        ("deepspeed", peer.and_then(|peer| peer.deepspeed.clone()).unwrap_or_else(none)),
        ("transformers", peer.and_then(|peer| peer.transformers.clone()).unwrap_or_else(none)),
        ("peft", peer.and_then(|peer| peer.peft.clone()).unwrap_or_else(none)),
    ])
}

/// A goal that depends on the processor: PyTorch's products are as fast as ours on some, and half as fast on AMD's.
pub struct ByProcessor {
    pub amd: f64,
    pub other: f64,
}

impl ByProcessor {
    /// The goal on this machine.
    pub fn here(&self) -> f64 {
        match field(&read("/proc/cpuinfo"), "vendor_id") {
            Some("AuthenticAMD") => self.amd,
            _ => self.other,
        }
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A file of the kernel, or nothing where there is none.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// `16303412 kB` in GiB.
fn gibibytes(text: &str) -> Option<String> {
    let kibibytes: f64 = text.strip_suffix(" kB")?.parse().ok()?;
    Some(format!("{:.1} GiB", kibibytes / f64::from(1 << 20)))
}

fn rustc() -> Result<String> {
    let output = Command::new("rustc").arg("--version").current_dir(cargo::root()).output();
    let output = output.context("cannot start rustc")?;
    if !output.status.success() {
        bail!("rustc --version ended with {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.trim().trim_start_matches("rustc ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernel_s_files() {
        let cpus =
            "processor\t: 0\nmodel name\t: A CPU @ 2.0GHz\nmodel\t\t: 1\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(field(cpus, "model name"), Some("A CPU @ 2.0GHz"));
        assert_eq!(field(cpus, "MemTotal"), None);
        assert_eq!(
            field("MemTotal:       16303412 kB\n", "MemTotal").and_then(gibibytes).unwrap(),
            "15.5 GiB"
        );
        assert_eq!(gibibytes("many"), None);
    }

    #[test]
    fn describes_this_machine() {
        let machine = describe(None).unwrap();
        assert!(machine.iter().all(|(_, value)| !value.is_empty()), "{machine:?}");
        let value = |name| &machine.iter().find(|(key, _)| *key == name).unwrap().1;
        assert!(value("torch").starts_with("not installed") && value("rustc").starts_with("1."));
    }
}
