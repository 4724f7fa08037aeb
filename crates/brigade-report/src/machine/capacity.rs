//! The memory that a machine has for processes.

use std::fs;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;

/// How much memory processes of this machine can take from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryCapacity {
    /// Bytes that all processes together can take: of the control group's limit, or of the machine.
    pub available: u64,
    /// What the number is, in words: `available on this machine`, `left of this control group's limit of 4.0 GiB`.
    pub source: String,
    /// Bytes of address space that one process may have (`ulimit -v`), where that is limited.
    pub address_space: Option<AddressSpace>,
}

/// A limited address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSpace {
    /// Bytes that a process may have.
    pub limit: u64,
    /// Bytes of them that this process has not taken yet.
    pub left: u64,
}

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// What this process's machine and control group can give. None if the system does not say.
pub fn memory_capacity() -> Option<MemoryCapacity> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = kib(&read(Path::new("/proc/meminfo"))?, "MemAvailable:")?;
    let limit = cgroup_folders(&read(Path::new("/proc/self/cgroup")).unwrap_or_default())
        .iter()
        .filter_map(|folder| left_of_limit(folder))
        .min();
    let (available, source) = match limit.filter(|(left, _)| *left < machine) {
        Some((left, limit)) => (left, format!("left of this control group's limit of {}", HumanBytes(limit))),
        None => (machine, "available on this machine".to_owned()),
    };
    Some(MemoryCapacity { available, source, address_space: address_space() })
}

/// How many processes of this control group the kernel has killed because memory was exhausted. None if it does not say.
pub fn oom_kills() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let counter =
        |text: String| text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
    let files = ["memory.events", "memory.oom_control"];
    let in_groups =
        cgroup_folders(&groups).into_iter().flat_map(|folder| files.map(|file| folder.join(file)));
    // Beside the groups: the count of the whole machine.
    let mut files = in_groups.chain([PathBuf::from("/proc/vmstat")]);
    files.find_map(|file| counter(fs::read_to_string(file).ok()?))
}

fn address_space() -> Option<AddressSpace> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Some(AddressSpace { limit, left: limit.saturating_sub(kib(&status, "VmSize:").unwrap_or(0)) })
}

/// A field in bytes of a table in KiB.
fn kib(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The folders of the control groups that limit a process's memory, its own first, from `/proc/self/cgroup` (cgroups(7)). Both versions
/// list a group's path from where they are mounted; in a container that may be another place, so that the mount itself is the group.
fn cgroup_folders(groups: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => PathBuf::from(CGROUPS),
            _ if controllers.split(',').any(|name| name == "memory") => Path::new(CGROUPS).join("memory"),
            _ => continue,
        };
        let own = mount.join(path.trim_start_matches('/'));
        folders.extend(own.ancestors().take_while(|folder| folder.starts_with(&mount)).map(Path::to_owned));
    }
    folders
}

/// What is left of a control group's limit, and the limit. Files that were read and can be read again do not count as used.
fn left_of_limit(folder: &Path) -> Option<(u64, u64)> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let files = read("memory.stat").unwrap_or_default();
    let cached = ["total_inactive_file ", "inactive_file "]
        .iter()
        .find_map(|name| files.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()));
    Some((limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))), limit))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_groups_of_both_versions_are_found() {
        let folders = |text: &str| -> Vec<String> {
            cgroup_folders(text).iter().map(|folder| folder.display().to_string()).collect()
        };
        assert_eq!(folders("0::/\n"), ["/sys/fs/cgroup/"]);
        assert_eq!(folders("0::/a/b\n"), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]);
        assert_eq!(
            folders("5:cpu,cpuacct:/x\n3:memory:/x\n"),
            ["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"]
        );
        assert!(folders("").is_empty() && folders("nonsense").is_empty());
    }

    #[test]
    fn what_is_left_of_a_limit_does_not_count_cached_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        assert_eq!(left_of_limit(folder.path()), None);
        write("memory.max", "1000\n");
        write("memory.current", "700\n");
        assert_eq!(left_of_limit(folder.path()), Some((300, 1000)));
        write("memory.stat", "anon 500\ninactive_file 150\n");
        assert_eq!(left_of_limit(folder.path()), Some((450, 1000)));
        write("memory.max", "max\n");
        assert_eq!(left_of_limit(folder.path()), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory() {
        let capacity = memory_capacity().unwrap();
        assert!(capacity.available > 1 << 20 && !capacity.source.is_empty(), "{capacity:?}");
    }
}
