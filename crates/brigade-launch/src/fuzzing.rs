//! Entry points for fuzzing: whatever the bytes are, nothing here may panic.

use clap::{Args, Command, FromArgMatches};

use crate::{
    args::LaunchArgs,
    environment::{Detected, detect},
    interrupt,
    rank::{heartbeat, restart},
};

/// What the first byte of a line chooses: a variable or a flag.
pub const NAMES: [&str; 50] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NNODES",
    "TORCHELASTIC_USE_AGENT_STORE",
    "BRIGADE_LAUNCHED",
    "BRIGADE_TOKEN",
    "BRIGADE_RESTART_COUNT",
    "BRIGADE_PREEMPTION_GRACE",
    "BRIGADE_HEARTBEAT_FD",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "CLUSTER_SPEC",
    "TF_CONFIG",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--rdzv-endpoint",
    "--master-addr",
    "--master-port",
    "--standalone",
    "--max-restarts",
    "--heartbeat-timeout",
    "--preemption-grace",
    "--tee",
    "BRIGADE_TOKEN_FILE",
    "CLOUD_ML_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
];

/// Reads the bytes as lines; the first byte of each chooses a variable or a flag, the rest is its value. Runs
/// everything that reads flags and environment.
pub fn environment(data: &[u8]) {
    let mut variables: Vec<(&str, String)> = vec![];
    let mut words = vec!["program".to_owned()];
    for line in data.split(|byte| *byte == b'\n') {
        let Some((first, value)) = line.split_first() else { continue };
        let (name, value) = (NAMES[usize::from(*first) % NAMES.len()], String::from_utf8_lossy(value));
        match name {
            "--standalone" | "--tee" => words.push(name.to_owned()),
            name if name.starts_with("--") => words.push(format!("{name}={value}")),
            name => variables.push((name, value.into_owned())),
        }
    }
    let env = |name: &str| {
        let found = variables.iter().rev().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone())
    };
    let matches = LaunchArgs::augment_args(Command::new("program")).try_get_matches_from(words);
    let args = matches.and_then(|matches| LaunchArgs::from_arg_matches(&matches)).unwrap_or_default();
    let describe = |found: Detected| (found.to_string(), found.source().to_string(), found.token(&env));
    drop(detect(&args, &env).map(describe).map_err(|error| (error.exit_code(), error.to_string())));
    drop((
        restart::read(&env),
        interrupt::preemption_grace(&env),
        heartbeat::parse(&env("BRIGADE_HEARTBEAT_FD").unwrap_or_default()),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that make sense somewhere, and some that make none.
    const VALUES: [&str; 18] = [
        "0",
        "1",
        "2",
        "3",
        "4096",
        "18446744073709551615",
        "-1",
        "head:29400",
        "[::1]:80",
        "gpu[01-03,07],login1",
        "n[1-99999999999]",
        "2(x3),1",
        "2:2",
        "auto",
        "true",
        "1.5",
        r#"{"cluster":{"workerpool0":["a:2222"],"workerpool1":["b:2222"]},"task":{"type":"workerpool1","index":0}}"#,
        r#"{"cluster":{"chief":["h0:10"],"worker":["h1:11"]},"task":{"type":"worker","index":9}}"#,
    ];

    #[test]
    fn no_environment_makes_it_panic() {
        // The same inputs every time.
        let mut drawn = 0;
        let mut next = |below: usize| {
            drawn += 1;
            usize::try_from(brigade_random::keyed(0, drawn) % below as u64).unwrap()
        };
        for _ in 0..20_000 {
            let mut data = vec![];
            for _ in 0..next(9) {
                data.push(u8::try_from(next(NAMES.len())).unwrap());
                let mut value = VALUES[next(VALUES.len())].as_bytes().to_vec();
                if next(4) == 0 {
                    let at = next(value.len());
                    value[at] = u8::try_from(next(256)).unwrap();
                }
                data.extend(value);
                data.push(b'\n');
            }
            environment(&data);
        }
    }
}
