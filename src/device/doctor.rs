//! What a machine offers for running ranks, and what is missing.

use std::path::Path;

use brigade_comm::{MAX_WORLD_SIZE, RAISE_OPEN_FILES, open_files_of_a_rank, ranks_within_open_files};
pub use brigade_report::MachineFinding;
use brigade_report::{HumanBytes, counted};
use rustix::process::{Resource, Rlimit, getrlimit};

use crate::settings::Backend;

/// NCCL ranks on one host exchange data through files in shared memory of about 10 MB each. Docker's default is 64 MiB.
const SHARED_MEMORY_WANTED: u64 = 256 << 20;

/// Checks this program's backends, this host, and its GPUs for a world of `world_size` ranks (by default, one per core of this
/// host). It never fails: whatever is missing is a finding with advice.
pub fn examine(world_size: Option<usize>) -> Vec<MachineFinding> {
    let world_size = world_size.unwrap_or_else(cores);
    let host = [
        backends(),
        processor(),
        shared_memory(Path::new("/dev/shm"), Backend::Cuda.is_built()),
        open_files(getrlimit(Resource::Nofile), world_size),
        locked_memory(getrlimit(Resource::Memlock)),
    ];
    let findings = host.into_iter();
    #[cfg(feature = "cuda")]
    let findings = findings.chain(brigade_cuda::examine());
    #[cfg(feature = "wgpu")]
    let findings = findings.chain(adapters());
    findings.collect()
}

fn backends() -> MachineFinding {
    let text = format!("{}; default of --backend: {}", Backend::built(), Backend::Auto.resolved().name());
    let finding = MachineFinding::good("backends of this program", text);
    match Backend::Cuda.is_built() || Backend::Wgpu.is_built() {
        true => finding,
        false => finding.with_advice(
            "only a program built for GPUs can check them: cargo xtask dist --backend cuda (or wgpu)",
        ),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn processor() -> MachineFinding {
    let memory = rustix::system::sysinfo();
    let bytes = HumanBytes(memory.totalram as u64 * u64::from(memory.mem_unit));
    MachineFinding::good("host", format!("{}, {bytes} of memory", counted(cores(), "core")))
}

/// Shared memory in files, which only NCCL uses: Brigade's own shared memory is anonymous.
fn shared_memory(path: &Path, has_nccl: bool) -> MachineFinding {
    let name = path.to_string_lossy();
    let (text, free) = match rustix::fs::statvfs(path) {
        Ok(stat) => {
            let (size, free) = (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize);
            (format!("{}, {} free", HumanBytes(size), HumanBytes(free)), free)
        }
        Err(error) => (error.to_string(), 0),
    };
    match free >= SHARED_MEMORY_WANTED {
        true => MachineFinding::good(name, text),
        false if has_nccl => MachineFinding::bad(
            name,
            text,
            "NCCL ranks on one host need it: enlarge it (docker run --shm-size=1g), or remove leftover files there",
        ),
        false => MachineFinding::good(name, text).with_advice(
            "only NCCL would need more; Brigade's own shared memory does not use it, and counts as the container's \
            memory",
        ),
    }
}

/// Every rank raises its soft limit to the hard limit, so the hard limit counts.
fn open_files(limit: Rlimit, world_size: usize) -> MachineFinding {
    let name = "open files (ulimit -Hn)";
    let Some(files) = limit.maximum else { return MachineFinding::good(name, "unlimited") };
    let (need, most) = (open_files_of_a_rank(world_size), ranks_within_open_files(files));
    let most = most.min(MAX_WORLD_SIZE as u64) as usize;
    let enough = format!("{files}, enough for worlds of {}", counted(most, "rank"));
    match files < need {
        true => MachineFinding::bad(
            name,
            enough,
            format!("a rank of a world of {world_size} may need {need}: {RAISE_OPEN_FILES}"),
        ),
        false => MachineFinding::good(name, enough),
    }
}

fn locked_memory(limit: Rlimit) -> MachineFinding {
    let name = "locked memory (ulimit -l)";
    match limit.current {
        None => MachineFinding::good(name, "unlimited"),
        Some(bytes) => MachineFinding::good(name, HumanBytes(bytes).to_string()).with_advice(
            "NCCL over InfiniBand needs more: ulimit -l unlimited (docker run --ulimit memlock=-1)",
        ),
    }
}

/// The adapters that wgpu finds.
#[cfg(feature = "wgpu")]
fn adapters() -> Vec<MachineFinding> {
    if brigade_wgpu::adapters().is_empty() {
        return vec![MachineFinding::bad("adapters", "none", brigade_wgpu::Error::NoAdapter.to_string())];
    }
    let adapters = brigade_wgpu::adapters().iter().enumerate();
    adapters
        .map(|(index, adapter)| MachineFinding::good(format!("adapter {index}"), adapter.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(both: Option<u64>) -> Rlimit {
        Rlimit { current: both, maximum: both }
    }

    #[test]
    fn limits_that_are_too_low_come_with_advice() {
        assert!(open_files(limit(None), MAX_WORLD_SIZE).ok);
        assert!(open_files(limit(Some(1024)), 256).ok);
        assert!(open_files(Rlimit { current: Some(64), maximum: Some(4096) }, MAX_WORLD_SIZE).ok);
        let low = open_files(limit(Some(1024)), 512);
        assert_eq!((low.ok, &*low.text), (false, "1024, enough for worlds of 298 ranks"));
        assert!(low.advice.is_some_and(|advice| advice.contains("a world of 512 may need 1664")));
        assert_eq!(locked_memory(limit(None)).advice, None);
        assert!(locked_memory(limit(Some(65_536))).advice.is_some_and(|advice| advice.contains("memlock")));
    }

    #[test]
    fn shared_memory_in_files_is_missed_only_for_nccl() {
        for path in ["/no/such/folder", "/proc"] {
            let missing = shared_memory(Path::new(path), true);
            assert!(
                !missing.ok && missing.advice.is_some_and(|advice| advice.contains("--shm-size")),
                "{path}"
            );
            let told = shared_memory(Path::new(path), false);
            assert!(told.ok && told.advice.is_some_and(|advice| advice.starts_with("only NCCL")), "{path}");
        }
    }

    #[test]
    fn the_first_findings_are_the_backends_and_the_host() {
        let findings = examine(None);
        assert!(findings[0].text.starts_with("cpu"), "{:?}", findings[0]);
        assert!(findings[1].text.contains("cores"), "{:?}", findings[1]);
    }
}
