//! What this host has for running on GPUs, for `brigade doctor`.

use brigade_report::{HumanBytes, MachineFinding};

use crate::cublas::{CUBLAS_FILE, cublas, is_cublas_named};
use crate::driver::{Driver, Gpu, driver};
use crate::error::Error;
use crate::libdevice::libdevice;
use crate::nccl::refusal;
use crate::nccl::{NCCL_FILE, nccl};

/// The finding for something that is missing.
fn missing(name: &str, error: &Error) -> MachineFinding {
    match error {
        Error::DriverInit { path, name: result, code, text, advice } => MachineFinding::bad(
            name,
            format!("does not initialise: {result} ({code}), {text} ({path})"),
            advice,
        ),
        Error::NoNccl { found, advice } => MachineFinding::bad(name, found, advice),
        // Other messages give their advice after a colon.
        other => match other.to_string().split_once(": ") {
            Some((found, advice)) => MachineFinding::bad(name, found, advice),
            None => MachineFinding::bad(name, other.to_string(), "see nvidia-smi"),
        },
    }
}

/// Examines the driver, the GPUs, NCCL, and the settings that affect them. It never fails: anything that is missing becomes a
/// finding with advice.
pub fn examine() -> Vec<MachineFinding> {
    let mut findings = Vec::new();
    match driver() {
        Ok(driver) => examine_driver(driver, &mut findings),
        Err(error) => findings.push(missing("driver", &error)),
    }
    match nccl() {
        Ok(nccl) => {
            findings.push(MachineFinding::good("NCCL", format!("{} ({})", nccl.version_name(), nccl.path())));
        }
        Err(error) => findings.push(missing("NCCL", &error)),
    }
    findings.push(match cublas() {
        Ok(cublas) => MachineFinding::good("cuBLAS", format!("{} ({})", cublas.version_name(), cublas.path())),
        Err(error) if is_cublas_named() => {
            let advice = "Set it to the file of cuBLAS (libcublas.so.13), or to off, or unset it";
            MachineFinding::bad("cuBLAS", error.to_string(), advice)
        }
        Err(error) => MachineFinding::good("cuBLAS", error.to_string()).with_advice(
            "Matrix products then run on Burn's own kernels, which are several times slower: install it (the package libcublas, or pip install nvidia-cublas) and set \
             BRIGADE_CUBLAS to its file, or add its folder to LD_LIBRARY_PATH",
        ),
    });
    findings.push(match libdevice() {
        Ok(file) => MachineFinding::good("libdevice", file.display().to_string()),
        Err(error) => missing("libdevice", &error),
    });
    findings.push(environment(
        std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        }),
    ));
    findings
}

fn examine_driver(driver: &Driver, findings: &mut Vec<MachineFinding>) {
    let text = format!("supports CUDA {} ({})", driver.version_name(), driver.path());
    let found = MachineFinding::good("driver", text);
    findings.push(match driver.has_context_events() {
        true => found,
        false => found.with_advice(
            "Without the context events of CUDA 12.5 (driver 555), communication cannot overlap computation: update the \
             driver",
        ),
    });
    let gpus = match driver.gpus() {
        Ok(gpus) => gpus,
        Err(error) => return findings.push(missing("GPUs", &error)),
    };
    if gpus.is_empty() {
        let (found, advice) = ("none is visible", "See nvidia-smi and CUDA_VISIBLE_DEVICES");
        return findings.push(MachineFinding::bad("GPUs", found, advice));
    }
    findings.extend(gpus.iter().map(|gpu| {
        let Gpu { name, uuid, pci_bus_id, total_memory, compute_capability: (major, minor), .. } = gpu;
        let memory = HumanBytes(*total_memory as u64);
        let text = format!("{name}, {memory}, compute capability {major}.{minor}, {uuid}, {pci_bus_id}");
        MachineFinding::good(format!("GPU {}", gpu.index), text)
    }));
    if gpus.len() > 1 {
        findings.push(peers(driver, gpus.len()));
    }
}

/// One row for each GPU: `1` where it can access the other's memory directly.
fn peers(driver: &Driver, count: usize) -> MachineFinding {
    let mut rows = Vec::new();
    let mut all = true;
    for a in 0..count {
        let mut row = format!("{a}:");
        for b in 0..count {
            let cell = match driver.can_access_peer(a, b) {
                _ if a == b => "-",
                Ok(true) => "1",
                Ok(false) => "0",
                Err(_) => "?",
            };
            all &= matches!(cell, "-" | "1");
            row.push(' ');
            row.push_str(cell);
        }
        rows.push(row);
    }
    let found = MachineFinding::good("direct access between GPUs", rows.join("; "));
    match all {
        true => found,
        false => found.with_advice(
            "GPUs that cannot access each other's memory (0) exchange data through host memory, which is slower; this \
            is common in virtual machines, and with PCIe access control",
        ),
    }
}

/// The environment variables that affect the driver or NCCL.
fn environment(variables: impl Iterator<Item = (String, String)>) -> MachineFinding {
    const NAMES: [&str; 5] =
        ["CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_DEVICE_MAX_CONNECTIONS", NCCL_FILE, CUBLAS_FILE];
    let mut found: Vec<_> =
        variables.filter(|(name, _)| NAMES.contains(&name.as_str()) || name.starts_with("NCCL_")).collect();
    found.sort();
    let refused = found.iter().find_map(|(name, value)| refusal(name, value));
    let found: Vec<_> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if found.is_empty() {
        return MachineFinding::good("environment", "no relevant variable is set");
    }
    let empty = found.iter().any(|setting| setting == "CUDA_VISIBLE_DEVICES=");
    let text = found.join(" ");
    if empty {
        return MachineFinding::bad(
            "environment",
            text,
            "An empty CUDA_VISIBLE_DEVICES hides all GPUs: unset it",
        );
    }
    match refused {
        Some(reason) => MachineFinding::bad("environment", text, reason),
        None => MachineFinding::good("environment", text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relevant_variables_are_shown_in_order() {
        let set = |pairs: &[(&str, &str)]| {
            environment(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        assert_eq!(set(&[("HOME", "/root")]).text, "no relevant variable is set");
        let found = set(&[("NCCL_DEBUG", "INFO"), ("HOME", "/root"), ("CUDA_VISIBLE_DEVICES", "0")]);
        assert_eq!(found.text, "CUDA_VISIBLE_DEVICES=0 NCCL_DEBUG=INFO");
        assert!(!set(&[("CUDA_VISIBLE_DEVICES", "")]).ok);
        assert!(set(&[("NCCL_COMM_BLOCKING", "0")]).ok);
        let found = set(&[("NCCL_COMM_BLOCKING", "1")]);
        assert!(!found.ok && found.advice.is_some_and(|advice| advice.contains("~/.nccl.conf")));
    }
}
