//! What no system allows.

use brigade_launch::MAX_WORLD_SIZE;

use super::{END_SECONDS, Job, check_variable, seconds, secrets};
use crate::error::{Error, Result};

/// Flags that place a node in its world, which the system's variables do.
const PLACED: [&str; 6] =
    ["--nnodes", "--node-rank", "--rdzv-endpoint", "--master-addr", "--master-port", "--standalone"];

/// Flags of elastic runs.
const ELASTIC: [&str; 2] = ["--last-call", "--resize-interval"];

/// The earliest that `sbatch --signal` can be told to send a signal before the end.
const LONGEST_END: u64 = 65_535;

/// What Kubernetes' numbers of 32 bits hold, less the preemptions that a PyTorchJob adds.
const MAX_RESTARTS: u32 = 2_147_483_000;

impl Job {
    /// Checks what no system allows.
    ///
    /// # Errors
    /// If the system cannot run such a job.
    pub fn check(&self) -> Result<()> {
        self.check_given()?;
        self.missing().map_or(Ok(()), Err)
    }

    /// What every job needs and this one was not given.
    pub fn missing(&self) -> Option<Error> {
        let why = "a restarted run must find its folder, so all nodes must share it";
        let is_needed = self.is_training() && self.results().is_none();
        is_needed.then(|| Error::Missing { option: "--out".into(), why: why.into() })
    }

    /// Checks what was given, as [`check`](Self::check) does.
    ///
    /// # Errors
    /// If no system can run such a job, whatever else is given.
    pub fn check_given(&self) -> Result<()> {
        self.check_world()?;
        self.check_times()?;
        self.check_command()?;
        self.env.keys().try_for_each(|name| check_variable("--env", name))?;
        secrets::check(&self.args, &self.env)
    }

    fn check_world(&self) -> Result<()> {
        if self.nodes == 0 {
            return Err(Error::value("--nodes", 0, format!("it must be from 1 to {MAX_WORLD_SIZE}")));
        }
        if let Some(least) = self.least_nodes.filter(|least| !(1..self.nodes).contains(least)) {
            let given = format!("{least}:{}", self.nodes);
            return Err(Error::value(
                "--nodes",
                given,
                "in MIN:MAX, MIN must be at least 1 and less than MAX",
            ));
        }
        let ranks = self.nodes.saturating_mul(self.gpus.max(1));
        if ranks > MAX_WORLD_SIZE {
            let allowed = format!(
                "with --gpus {} that makes {ranks} ranks, but a world has at most {MAX_WORLD_SIZE}",
                self.gpus
            );
            return Err(Error::value("--nodes", self.nodes, allowed));
        }
        if self.gpus == 0
            && let Some(kind) = self.gpu_kind
        {
            let why = format!("how many {} does each node have?", kind.name);
            return Err(Error::Missing { option: "--gpus".into(), why });
        }
        Ok(())
    }

    fn check_times(&self) -> Result<()> {
        let (option, given) = self.grace();
        if seconds(&given).is_none() || self.end_seconds() > LONGEST_END {
            let most = LONGEST_END - END_SECONDS;
            return Err(Error::value(
                option,
                given,
                format!("it must be a number of seconds from 0 to {most}"),
            ));
        }
        if self.max_restarts > MAX_RESTARTS {
            let allowed = format!("it must be at most {MAX_RESTARTS}");
            return Err(Error::value("--restarts", self.max_restarts, allowed));
        }
        Ok(())
    }

    fn check_command(&self) -> Result<()> {
        if self.program.trim().is_empty() {
            let allowed = "it must be the name or the path of a program, such as brigade";
            return Err(Error::value("--program", &self.program, allowed));
        }
        let words = self.words();
        if self.is_brigade() && !matches!(words.subcommand(), Some("train" | "launch")) {
            let given = words.subcommand().unwrap_or("nothing");
            return Err(Error::value(
                "the command after --",
                given,
                "it must be train … or launch …, as for brigade itself; --program names another program",
            ));
        }
        for flag in PLACED {
            if words.has(flag) {
                let given = words.value(flag).unwrap_or_default();
                let allowed = match flag {
                    "--nnodes" if given.contains(':') => "leave it out, and give --nodes MIN:MAX",
                    _ => "the system numbers the nodes; leave it out, and give --nodes",
                };
                return Err(Error::value(flag, given, allowed));
            }
        }
        for flag in ELASTIC.into_iter().filter(|_| self.least_nodes.is_none()) {
            if words.has(flag) {
                let given = words.value(flag).unwrap_or_default();
                let allowed = "it is for nodes that come and go; leave it out, or give --nodes MIN:MAX";
                return Err(Error::value(flag, given, allowed));
            }
        }
        if let Some(value) = words.value("--nproc-per-node")
            && self.gpus > 0
            && value != self.gpus.to_string()
        {
            let allowed = format!("each of the {} GPUs has one rank; leave it out", self.gpus);
            return Err(Error::value("--nproc-per-node", value, allowed));
        }
        if self.gpus > 0 && self.is_training() && words.setting("--backend", "compute.backend") == Some("cpu")
        {
            let allowed = format!(
                "each of the {} GPUs has one rank; leave it out, or give --gpus 0 for ranks on the CPU",
                self.gpus
            );
            return Err(Error::value("--backend", "cpu", allowed));
        }
        if self.is_training() && words.has("--overwrite") {
            let allowed = "each restart of the job would delete the run; leave it out, and give another --out or remove the folder first";
            return Err(Error::value("--overwrite", "in a job", allowed));
        }
        Ok(())
    }
}
