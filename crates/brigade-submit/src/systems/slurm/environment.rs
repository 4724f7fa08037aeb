//! Variables of the shell that submits a job which `sbatch` and the job's tasks must not see.
//!
//! `sbatch` reads options from variables, too, and they count more than the script's lines (its manual page, "Input environment variables"). What is set within another
//! job, or by a launcher of ranks, would place the new job's tasks.

use super::Slurm;
use crate::systems::LeftOut;

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

/// Those of other jobs and their tasks, and of ranks.
const OF_TASKS: [&str; 18] = [
    "SLURM_*",
    "SRUN_*",
    "PET_*",
    "PMI_*",
    "PMIX_*",
    "OMPI_COMM_WORLD_*",
    "MPI_LOCAL*",
    "TORCHELASTIC_*",
    "CLUSTER_SPEC",
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "RANK",
    "TF_CONFIG",
    "WORLD_SIZE",
];

/// Those that say where Slurm is, who asks, and how its programs print.
const KEPT: [&str; 5] = ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT", "SLURM_UMASK"];

/// What the script unsets: it may be submitted without this program. `MASTER_ADDR` stays, which whoever does so needs where the names of nodes lead nowhere.
pub(super) const UNSET: &str = "# Those of a job or a launcher that this was submitted from.\n\
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NNODES CLUSTER_SPEC TF_CONFIG ${!PET_*} ${!PMI_*} ${!OMPI_COMM_WORLD_*}\n\n";

/// The long names of options that the user may add by a letter, and that have variables.
const SHORT: [(char, &str); 5] =
    [('C', "constraint"), ('q', "qos"), ('s', "overcommit"), ('m', "distribution"), ('S', "core-spec")];

impl Slurm {
    /// The variables that `sbatch` does not get.
    pub(super) fn left_out(&self) -> LeftOut {
        let mut names: Vec<String> = OWN.iter().chain(&OF_TASKS).map(|name| (*name).to_owned()).collect();
        if !self.shared_nodes {
            names.extend(OF_WHOLE_NODES.map(str::to_owned));
        }
        let given = [
            (self.account.is_some(), "SBATCH_ACCOUNT"),
            (self.partition.is_some(), "SBATCH_PARTITION"),
            (self.time.is_some(), "SBATCH_TIMELIMIT"),
            (self.switches.is_some(), "SBATCH_REQ_SWITCH"),
            (self.switches.is_some(), "SBATCH_WAIT4SWITCH"),
        ];
        names.extend(given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, name)| name.to_owned()));
        // Options that the user adds are lines of the script.
        names.extend(self.options.iter().filter_map(|option| variable(option)));
        LeftOut { names, kept: &KEPT }
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
        let left_out = plain.left_out();
        assert!(own.iter().all(|name| left_out.contains(name)));
        assert!(!others.iter().any(|name| left_out.contains(name)));
        let given = Slurm {
            account: Some("a".into()),
            shared_nodes: true,
            options: vec!["--qos=high".into(), "-C h100".into(), "--mem=4G".into()],
            ..plain
        };
        let left_out = given.left_out();
        for name in ["SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_CONSTRAINT", "SBATCH_MEM_PER_NODE"] {
            assert!(left_out.contains(name), "{name}");
        }
        assert!(!left_out.contains("SBATCH_EXCLUSIVE") && !left_out.contains("SBATCH_PARTITION"));
    }
}
