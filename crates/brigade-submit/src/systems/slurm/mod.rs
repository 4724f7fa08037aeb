//! Slurm: a batch script with one task a node, each a launcher of Brigade.
//!
//! Preemption and the end of the time send SIGTERM to the tasks, which save and exit with 75; the script then puts the job into the queue again. Where somebody
//! cancelled it, or a node failed, Slurm itself has decided already.

mod environment;
mod options;

use super::{Commands, JobState, Manifest, System, Token, no_buckets, not_elastic, shell, time, words};
use crate::error::{Error, Result};
use crate::job::{Job, no_secret};
use options::Replaced;

/// How much earlier than it was asked for Slurm may send a signal, in seconds.
const EARLIER: u64 = 60;

/// Slurm, and what it must know of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    /// The partition.
    pub partition: Option<String>,
    /// The account.
    pub account: Option<String>,
    /// The limit of time, as `sbatch --time` takes it.
    pub time: Option<String>,
    /// Switches that the nodes may be spread over.
    pub switches: Option<usize>,
    /// The secret of the ranks: the job makes one, unless a file has it.
    pub token: Token,
    /// Whether other jobs may run on the nodes, too.
    pub shared_nodes: bool,
    /// Further options of `sbatch`, each a line.
    pub options: Vec<String>,
}

impl Slurm {
    fn directives(&self, job: &Job) -> Vec<String> {
        let mut all = vec![
            format!("--job-name={}", job.name),
            format!("--nodes={}", job.nodes),
            "--ntasks-per-node=1".into(),
            "--requeue".into(),
            // What it printed before stays when it starts again.
            "--open-mode=append".into(),
            format!("--output={}-%j.log", job.name),
            format!("--signal=TERM@{}", job.end_seconds()),
        ];
        // They were checked.
        let replaced = Replaced::by(&self.options, job.gpus).unwrap_or_default();
        if !self.shared_nodes && !replaced.exclusive {
            // A launcher's ranks use all of its node, of which this does not ask for the memory.
            all.push("--exclusive".into());
            all.extend((!replaced.memory).then(|| "--mem=0".into()));
        }
        if job.gpus > 0 && !replaced.gpus {
            all.push(format!("--gpus-per-node={}", job.gpus));
        }
        all.extend(self.partition.as_ref().map(|partition| format!("--partition={partition}")));
        all.extend(self.account.as_ref().map(|account| format!("--account={account}")));
        all.extend(self.time.as_ref().map(|time| format!("--time={time}")));
        all.extend(self.switches.map(|switches| format!("--switches={switches}")));
        all.extend(self.options.iter().map(|option| options::line(option)));
        all
    }

    fn script(&self, job: &Job) -> String {
        let mut script = String::from("#!/bin/bash\n");
        self.directives(job).iter().for_each(|line| script.push_str(&format!("#SBATCH {line}\n")));
        script.push_str(
            "\n# The ranks save when they get the signal; this script outlives it.\ntrap : TERM USR1\n\n",
        );
        script.push_str(environment::UNSET);
        script.push_str(&match &self.token {
            Token::File(path) => format!("export BRIGADE_TOKEN_FILE={}\n", shell::quoted(path)),
            Token::Random => {
                "BRIGADE_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')\nexport BRIGADE_TOKEN\n".into()
            }
        });
        for (name, value) in job.environment(None) {
            script.push_str(&format!("export {name}={}\n", shell::quoted(&value)));
        }
        // The variables of a single task are those of a rank, not of a node.
        let mut placement = if job.nodes == 1 { words(&["--standalone"]) } else { Vec::new() };
        placement.extend(job.launcher_restarts());
        script.push_str(&format!(
            "\nsrun --mpi=none --export=ALL --kill-on-bad-exit=0 --cpu-bind=none {}\ncode=$?\n\n",
            shell::line(&job.command(&placement))
        ));
        script.push_str(
            "# 75: saved a checkpoint before being stopped (preemption, end of its time), so requeue. Slurm itself handles cancelled jobs and node\n\
             # failures; their state is neither RUNNING nor SIGNALING.\n\
             if [ \"$code\" = 75 ]; then\n\
             \x20   case $(scontrol show job \"$SLURM_JOB_ID\" --oneliner) in\n\
             \x20       *JobState=RUNNING* | *JobState=SIGNALING*) scontrol requeue \"$SLURM_JOB_ID\" && exit 0 ;;\n\
             \x20   esac\nfi\nexit \"$code\"\n",
        );
        script
    }
}

impl System for Slurm {
    fn name(&self) -> &'static str {
        "slurm"
    }

    fn check(&self, job: &Job) -> Result<()> {
        not_elastic(job, "Slurm")?;
        let of_names = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if job.name.is_empty() || job.name.len() > 128 || !job.name.chars().all(of_names) {
            return Err(Error::value(
                "--name",
                &job.name,
                "it also names a file: 1 to 128 letters, digits, '-', '_' and '.'",
            ));
        }
        for option in &self.options {
            no_secret("--option", option)?;
        }
        let replaced = Replaced::by(&self.options, job.gpus)?;
        if self.shared_nodes && replaced.exclusive {
            let allowed = "both say who shares the nodes; give one of the two";
            return Err(Error::value("--shared-nodes", "with --option=--exclusive=…", allowed));
        }
        if let Token::File(path) = &self.token
            && (path.is_empty() || path.contains("://"))
        {
            let allowed = "with Slurm it must be the path of a file that the nodes can read";
            return Err(Error::value("--token-file", path, allowed));
        }
        let given = [("--partition", &self.partition), ("--account", &self.account), ("--time", &self.time)];
        for (option, value) in given.into_iter().filter_map(|(option, value)| Some((option, value.as_ref()?)))
        {
            if value.is_empty() || value.chars().any(char::is_whitespace) {
                return Err(Error::value(option, value, "it must be one word"));
            }
        }
        self.time.as_deref().map_or(Ok(()), |limit| check_time(limit, job))?;
        no_buckets(job, "that all nodes share")
    }

    fn manifests(&self, job: &Job) -> Vec<Manifest> {
        vec![Manifest { file: "slurm.sh".into(), text: self.script(job) }]
    }

    fn commands(&self, job: &Job) -> Commands {
        Commands {
            check: Some(words(&["sbatch", "--test-only", "{manifest}"])),
            submit: words(&["sbatch", "--parsable", "{manifest}"]),
            logs: words(&["tail", "-n", "+1", "-F", &format!("{}-{{id}}.log", job.name)]),
            logs_have_times: false,
            state: words(&["scontrol", "show", "job", "{id}", "--oneliner"]),
            waiting: None,
            cancel: words(&["scancel", "{id}"]),
        }
    }

    fn hides(&self, variable: &str) -> bool {
        self.hides(variable)
    }

    fn waits_for(&self, state: &str, _: &str) -> Option<String> {
        let reason = field(state, "Reason=")?;
        (field(state, "JobState=") == Some("PENDING")).then(|| format!("PENDING, {reason}"))
    }

    fn state_of(&self, text: &str) -> JobState {
        match field(text, "JobState=").unwrap_or_default() {
            "COMPLETED" => JobState::Done,
            "CANCELLED" => JobState::Cancelled,
            "FAILED" | "TIMEOUT" | "OUT_OF_MEMORY" | "DEADLINE" | "BOOT_FAIL" => JobState::Failed,
            "PREEMPTED" | "NODE_FAIL" | "REVOKED" | "LAUNCH_FAILED" => JobState::Ended,
            _ => JobState::Active,
        }
    }
}

/// The value of a field of `scontrol show`, with its name and = before it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_whitespace().find_map(|word| word.strip_prefix(name))
}

/// Checks a limit of time: a job that is told to save as soon as it starts would start again for ever.
fn check_time(limit: &str, job: &Job) -> Result<()> {
    let seconds = time::limit(limit)?;
    let (end, (option, grace)) = (job.end_seconds(), job.grace());
    let least = end + EARLIER;
    if seconds > least {
        return Ok(());
    }
    let allowed = format!(
        "with {option} {grace} the ranks are told to save {end} s before the end, or up to {EARLIER} s earlier, so it must be longer than {least} s"
    );
    Err(Error::value("--time", limit, allowed))
}
