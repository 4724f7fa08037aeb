//! Names of variables that a user may set.

use crate::error::{Error, Result};

/// Variables of the ranks' secret, which each system sets.
const SECRET: [&str; 2] = ["BRIGADE_TOKEN", "BRIGADE_TOKEN_FILE"];

/// Variables that place a node or a rank in its world.
const PLACE: [&str; 17] = [
    "CLOUD_ML_JOB_ID",
    "CLUSTER_SPEC",
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "NODE_RANK",
    "RANK",
    "SLURM_JOB_ID",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "TF_CONFIG",
    "WORLD_SIZE",
];

/// How the names of others begin.
const BEGINNINGS: [&str; 4] = ["PET_", "OMPI_COMM_WORLD_", "PMI_", "BRIGADE_"];

/// How the names of Brigade's variables begin that are the user's: where files are, and what is printed.
const FOR_USERS: [&str; 4] = ["BRIGADE_CACHE_DIR", "BRIGADE_CUBLAS", "BRIGADE_LOG", "BRIGADE_NCCL"];

/// Whether a variable places a node or a rank in its world, or is what Brigade's launcher tells its ranks.
pub(crate) fn places_ranks(name: &str) -> bool {
    let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| name.starts_with(beginning));
    PLACE.contains(&name) || (begins(&BEGINNINGS) && !begins(&FOR_USERS))
}

/// Checks the name of a variable that `option` sets.
///
/// # Errors
/// If it is no name, or the name of a variable that the job sets itself.
pub(crate) fn check_variable(option: &str, name: &str) -> Result<()> {
    let wrong = |allowed: &str| Err(Error::value(option, name, allowed));
    let of_names = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if name.is_empty()
        || !name.chars().all(of_names)
        || name.starts_with(|first: char| first.is_ascii_digit())
    {
        return wrong("a variable's name consists of letters, digits and _, and begins with no digit");
    }
    if SECRET.contains(&name) {
        return wrong(
            "the job sets it itself: give --token-file with Slurm and Vertex AI, and --token-secret with Kubernetes",
        );
    }
    if places_ranks(name) {
        return wrong(
            "the system or Brigade's launcher sets it, to place the nodes and their ranks; leave it out",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_places_ranks_is_not_the_users() {
        for name in ["HF_HOME", "BRIGADE_CACHE_DIR", "BRIGADE_LOG", "RANKS", "NCCL_DEBUG"] {
            check_variable("--env", name).unwrap();
        }
        for name in ["CLUSTER_SPEC", "RANK", "PET_NNODES", "BRIGADE_LAUNCHED", "NODE_RANK", "PMI_RANK"] {
            let message = check_variable("--env", name).unwrap_err().to_string();
            let said = format!("--env {name} is not possible: the system or Brigade's launcher sets it");
            assert!(message.starts_with(&said), "{message}");
        }
        for name in ["", "A B", "7A", "A-B"] {
            let message = check_variable("--env", name).unwrap_err().to_string();
            assert!(message.contains("letters, digits and _"), "{message}");
        }
    }
}
