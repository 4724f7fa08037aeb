//! A Slurm of two nodes on this machine, in a temporary folder.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

/// What must be installed.
const PROGRAMS: [&str; 7] = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel"];

const DEADLINE: Duration = Duration::from_secs(60);

/// Refuses a machine without Slurm.
pub fn check_programs() -> Result<()> {
    // Daemons need not be in the path of users.
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .collect();
    let is_missing = |program: &&&str| !folders.iter().any(|folder| folder.join(program).is_file());
    let missing: Vec<&str> = PROGRAMS.iter().filter(is_missing).copied().collect();
    ensure!(missing.is_empty(), "{} not found; Debian: apt-get install slurm-wlm munge", missing.join(", "));
    Ok(())
}

/// The daemons, which end with this value.
pub struct Cluster {
    folder: TempDir,
    /// Who runs it and all of its jobs.
    user: String,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts it, and waits until both nodes are idle.
    pub fn start() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("brigade-slurm-").tempdir()?;
        let user = printed(Command::new("id").arg("-un"))?.trim().to_owned();
        let mut cluster = Self { folder, user, daemons: Vec::new() };
        fs::create_dir(cluster.path("state"))?;
        let mut key = [0_u8; 128];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut key)?;
        fs::write(cluster.path("munge.key"), key)?;
        fs::set_permissions(cluster.path("munge.key"), std::os::unix::fs::PermissionsExt::from_mode(0o400))?;
        fs::write(cluster.path("slurm.conf"), cluster.configuration()?)?;
        let munge = ["socket", "key-file", "pid-file", "log-file", "seed-file"].map(|option| {
            let file = if option == "key-file" { "munge.key".into() } else { format!("munge.{option}") };
            format!("--{option}={}", cluster.path(&file).display())
        });
        cluster.daemon("munged", ["--foreground".into(), "--force".into()].into_iter().chain(munge))?;
        cluster.daemon("slurmctld", ["-D".into()])?;
        for node in ["node0", "node1"] {
            cluster.daemon("slurmd", ["-D".into(), "-N".into(), node.into()])?;
        }
        cluster.until("two idle nodes", || {
            Ok(cluster.output("sinfo", "-h -N -o %T")?.lines().filter(|line| *line == "idle").count() == 4)
        })?;
        Ok(cluster)
    }

    fn configuration(&self) -> Result<String> {
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
        let mut ports = Vec::new();
        for listener in listeners {
            ports.push(listener?.local_addr()?.port());
        }
        let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let (name, user, dir) = (name.trim(), &self.user, self.folder.path().display());
        // As a cluster would have it where preemption starts jobs again, but that it decides every second.
        Ok(format!(
            "ClusterName=brigade\nSlurmctldHost={name}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser={user}\nSlurmdUser={user}\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool-%n\nSlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/slurmd-%n.pid\nSlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/slurmd-%n.log\n\
             AuthType=auth/munge\nAuthInfo=socket={dir}/munge.socket\nCredType=cred/munge\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nMpiDefault=none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nJobRequeue=1\nKillWait=20\nReturnToService=0\n\
             SlurmdParameters=config_overrides\nSchedulerParameters=sched_interval=1,bf_interval=1,requeue_delay=1\n\
             AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n\
             NodeName=node0 NodeHostname={name} NodeAddr=127.0.0.1 Port={} CPUs=2\n\
             NodeName=node1 NodeHostname={name} NodeAddr=127.0.0.1 Port={} CPUs=2\n\
             PartitionName=low Nodes=node[0-1] PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 Default=YES\n\
             PartitionName=high Nodes=node[0-1] PriorityTier=2\n",
            ports[0], ports[1], ports[2]
        ))
    }

    fn daemon(&mut self, program: &str, args: impl IntoIterator<Item = String>) -> Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.path(&format!("{program}.out")))?;
        let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
        let child = Command::new(program)
            .args(args)
            .env("SLURM_CONF", self.path("slurm.conf"))
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        self.daemons.push(child);
        Ok(())
    }

    /// A file of the cluster.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program of Slurm's, with these words.
    pub fn command(&self, program: &str, line: &str) -> Command {
        let mut command = Command::new(program);
        command.args(line.split_whitespace()).env("SLURM_CONF", self.path("slurm.conf")).stdin(Stdio::null());
        command
    }

    /// What it prints; it must succeed.
    pub fn output(&self, program: &str, line: &str) -> Result<String> {
        printed(&mut self.command(program, line))
    }

    /// Asks until the answer is yes.
    pub fn until(&self, what: &str, ask: impl FnMut() -> Result<bool>) -> Result<()> {
        self.until_within(DEADLINE, what, ask)
    }

    /// Asks until the answer is yes, for as long as it may take.
    pub fn until_within(
        &self,
        deadline: Duration,
        what: &str,
        mut ask: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let begin = Instant::now();
        let mut last = None;
        while begin.elapsed() < deadline {
            match ask() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // A daemon that does not answer yet.
                Err(error) => last = Some(error),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("{what}: not after {deadline:?}; {last:?}")
    }

    /// What the daemons said last.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for name in ["munged.out", "slurmctld.log", "slurmd-node0.log", "slurmd-node1.log"] {
            let text = fs::read_to_string(self.path(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(5).collect();
            all.extend(lines.into_iter().rev().map(|line| format!("{name}: {line}\n")));
        }
        all
    }
}

/// What a command prints; it must succeed.
pub fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

/// Whether two files have the same bytes.
pub fn same(a: &Path, b: &Path) -> Result<bool> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    Ok(read(a)? == read(b)?)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Jobs first, so that no process of theirs is left.
        let _ = self
            .command("scancel", &format!("--signal=KILL --full --state=RUNNING -u {}", self.user))
            .output();
        for child in self.daemons.iter_mut().rev() {
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        for child in self.daemons.iter_mut().rev() {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(10) && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
