//! The processes of a run, as the system knows them.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Far below the deadlines that a run has by default, and far above what anything takes that is not waited out.
pub const SOON: Duration = Duration::from_secs(25);

/// By which processes that are started separately know each other (`BRIGADE_TOKEN`).
pub const TOKEN: &str = "a-secret-for-these-tests";

/// A port that is free now.
pub fn port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn process(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).unwrap()
}

/// Sends a signal to a process; whether it was there.
pub fn send(pid: u32, signal: Signal) -> bool {
    kill_process(process(pid), signal).is_ok()
}

/// All processes.
fn all() -> impl Iterator<Item = u32> {
    let names = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok())
}

/// The ranks that a launcher has started, in order: what processes say of themselves under /proc.
pub fn ranks(launcher: u32) -> Vec<u32> {
    let rank_of = |pid: u32| -> Option<usize> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(") ").next()?.split(' ').nth(1)?;
        let environment =
            fs::read(format!("/proc/{pid}/environ")).ok().filter(|_| parent == launcher.to_string())?;
        let rank =
            environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"RANK="))?;
        std::str::from_utf8(rank).ok()?.parse().ok()
    };
    let mut ranks: Vec<_> = all().filter_map(|pid| Some((rank_of(pid)?, pid))).collect();
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, pid)| pid).collect()
}

/// Whether a process holds back or handles a signal, so that it does not end by it.
pub fn takes(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let sets = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigBlk:").or_else(|| line.strip_prefix("SigCgt:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    sets.fold(0, |all, set| all | set) >> (signal.as_raw() - 1) & 1 == 1
}

/// The processes that work in a folder.
pub fn working_in(folder: &Path) -> Vec<u32> {
    let works = |pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder);
    all().filter(works).collect()
}

/// Waits until no process works in a folder: 5 s are promised, even where all were killed, and a loaded machine has more.
pub fn none_left_in(folder: &Path) {
    let begin = Instant::now();
    loop {
        let left = working_in(folder);
        if left.is_empty() {
            return;
        }
        assert!(begin.elapsed() < SOON, "processes {left:?} are left after {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn all_gone(ranks: &[u32]) {
    for pid in ranks {
        assert!(test_kill_process(process(*pid)).is_err(), "process {pid} is left");
    }
}

/// The same command in a shell that limits the addresses of each process, in KiB.
pub fn limited(command: &Command, kib: u64) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {kib} && exec \"$@\""), "sh"]).arg(command.get_program());
    shell.args(command.get_args()).env_clear();
    command.get_current_dir().map(|folder| shell.current_dir(folder));
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}
