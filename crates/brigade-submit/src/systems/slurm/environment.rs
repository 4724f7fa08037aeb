//! Variables of the shell that submits a job which `sbatch` and the job's tasks must not see.
//!
//! `sbatch` reads options from variables, too, and they count more than the script's lines (its manual page, "Input environment variables"). What is set within another
//! job, or by a launcher of ranks, would place the new job's tasks.

use super::Slurm;
use crate::job::places_ranks;

/// What the script depends on, or says by options of its own.
const OWN: [&str; 20] = [
    "SBATCH_ARRAY_INX",
    "SBATCH_CLUSTERS",
    "SBATCH_CPUS_PER_GPU",
    "SBATCH_ERROR",
    "SBATCH_EXPORT",
    "SBATCH_GET_USER_ENV",
    "SBATCH_GPUS",
    "SBATCH_GPUS_PER_NODE",
    "SBATCH_GPUS_PER_TASK",
    "SBATCH_GRES",
    "SBATCH_INPUT",
    "SBATCH_JOB_NAME",
    "SBATCH_NO_KILL",
    "SBATCH_NO_REQUEUE",
    "SBATCH_OPEN_MODE",
    "SBATCH_OUTPUT",
    "SBATCH_OVERCOMMIT",
    "SBATCH_REQUEUE",
    "SBATCH_SIGNAL",
    "SBATCH_WAIT",
];

/// Those of nodes that no other job may use.
const OF_WHOLE_NODES: [&str; 4] =
    ["SBATCH_EXCLUSIVE", "SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"];

/// How the names of others begin that are of jobs and their tasks, beside those that place ranks anywhere.
const OF_TASKS: [&str; 5] = ["SLURM_", "SRUN_", "PMIX_", "MPI_LOCAL", "TORCHELASTIC_"];

/// Those that say where Slurm is, who asks, and how its programs print.
const KEPT: [&str; 5] = ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT", "SLURM_UMASK"];

/// What the script unsets: it may be submitted without this program. `MASTER_ADDR` stays: such a submission needs it where node names do not resolve.
pub(super) const UNSET: &str = "# Those of a job or a launcher that this was submitted from.\n\
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NNODES CLUSTER_SPEC TF_CONFIG ${!PET_*} ${!PMI_*} ${!OMPI_COMM_WORLD_*}\n\n";

/// The long names of options that the user may add by a letter, and that have variables.
const SHORT: [(char, &str); 5] =
    [('C', "constraint"), ('q', "qos"), ('s', "overcommit"), ('m', "distribution"), ('S', "core-spec")];

impl Slurm {
    /// Whether `sbatch` does not get a variable of this name.
    pub(super) fn hides(&self, name: &str) -> bool {
        let given = [
            (self.account.is_some(), "SBATCH_ACCOUNT"),
            (self.partition.is_some(), "SBATCH_PARTITION"),
            (self.time.is_some(), "SBATCH_TIMELIMIT"),
            (self.switches.is_some(), "SBATCH_REQ_SWITCH"),
            (self.switches.is_some(), "SBATCH_WAIT4SWITCH"),
        ];
        let is_of_tasks = places_ranks(name) || OF_TASKS.iter().any(|beginning| name.starts_with(beginning));
        (is_of_tasks && !KEPT.contains(&name))
            || OWN.contains(&name)
            || (!self.shared_nodes && OF_WHOLE_NODES.contains(&name))
            || given.contains(&(true, name))
            // Options that the user adds are lines of the script.
            || self.options.iter().any(|option| variable(option).as_deref() == Some(name))
    }
}

/// The variable of an option as `--qos=high` or `-q high`.
fn variable(option: &str) -> Option<String> {
    let long = match option.strip_prefix("--") {
        Some(long) => long.split(['=', ' ']).next()?,
        None => {
            SHORT
                .iter()
                .find(|(letter, _)| option.strip_prefix('-').is_some_and(|o| o.starts_with(*letter)))?
                .1
        }
    };
    let name = if long == "mem" { "mem-per-node" } else { long };
    Some(format!("SBATCH_{}", name.replace('-', "_").to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::Token;

    #[test]
    fn what_counts_more_than_the_script_and_what_places_tasks_is_left_out() {
        let plain = Slurm {
            partition: None,
            account: None,
            time: None,
            switches: None,
            token: Token::Random,
            shared_nodes: false,
            options: Vec::new(),
        };
        let own = ["SBATCH_WAIT", "SBATCH_EXCLUSIVE", "SLURM_JOB_ID", "SLURM_NTASKS", "PMI_RANK", "RANK"];
        let others = ["SBATCH_ACCOUNT", "SBATCH_QOS", "SLURM_CONF", "SLURM_JWT", "PATH", "HF_HOME"];
        assert!(own.iter().all(|name| plain.hides(name)));
        assert!(!others.iter().any(|name| plain.hides(name)));
        let given = Slurm {
            account: Some("a".into()),
            shared_nodes: true,
            options: vec!["--qos=high".into(), "-C h100".into(), "--mem=4G".into()],
            ..plain
        };
        for name in ["SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_CONSTRAINT", "SBATCH_MEM_PER_NODE"] {
            assert!(given.hides(name), "{name}");
        }
        assert!(!given.hides("SBATCH_EXCLUSIVE") && !given.hides("SBATCH_PARTITION"));
    }
}
