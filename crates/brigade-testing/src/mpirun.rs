//! Programs as the ranks of an MPI.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Open MPI's settings for machines with fewer cores than ranks and for containers, where everything runs as root; others do not
/// read them.
const SETTINGS: [(&str, &str); 5] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// How an `mpirun` ended.
#[derive(Debug)]
pub struct MpiRun {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it and all ranks printed, on both streams.
    pub output: String,
    /// How long it took.
    pub took: Duration,
}

/// Runs a program as this many ranks, by `mpirun` from `MPIRUN` or `PATH`, and ends it after `deadline`.
///
/// # Panics
/// If there is no `mpirun`, or the deadline passes.
pub fn mpirun(ranks: usize, program: &Command, deadline: Duration) -> MpiRun {
    start(launcher(), ranks, program, deadline)
}

/// The same by `mpiexec`, the name in MPI's standard: the one that is installed with that `mpirun`.
///
/// # Panics
/// If there is no `mpiexec`, or the deadline passes.
pub fn mpiexec(ranks: usize, program: &Command, deadline: Duration) -> MpiRun {
    let name = launcher().into_string().expect("MPIRUN is text").replace("mpirun", "mpiexec");
    start(name.into(), ranks, program, deadline)
}

fn launcher() -> OsString {
    std::env::var_os("MPIRUN").unwrap_or_else(|| "mpirun".into())
}

fn start(mpirun: OsString, ranks: usize, program: &Command, deadline: Duration) -> MpiRun {
    let mut command = Command::new(&mpirun);
    command.arg("-n").arg(ranks.to_string()).arg(program.get_program()).args(program.get_args());
    command.envs(SETTINGS);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = program.get_current_dir() {
        command.current_dir(folder);
    }
    let mut file = tempfile::tempfile().expect("a temporary file");
    let copy = |file: &File| file.try_clone().expect("a second handle of a file");
    command.stdin(Stdio::null()).stdout(copy(&file)).stderr(copy(&file));
    let start = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {mpirun:?}: {error}"));
    let output = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("what it printed");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    loop {
        if let Some(status) = child.try_wait().expect("the state of a child") {
            return MpiRun { status, output: output(&mut file), took: start.elapsed() };
        }
        if start.elapsed() > deadline {
            // It ends its ranks when it is told to end.
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            std::thread::sleep(Duration::from_secs(3));
            let _ = child.kill();
            let _ = child.wait();
            panic!("{ranks} ranks did not end within {deadline:?}:\n{}", output(&mut file));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
