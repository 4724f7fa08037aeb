//! Flags and environment of a process that a cluster started.

use brigade_launch::{LaunchArgs, detect, fuzzing};

use crate::target::{Bound, Limit, Target, lines};

/// What a process finds out about its place from flags and environment.
///
/// An input has one variable or flag a line. Counted as parsed: the variables, without the flags, tell the process its
/// place, other than alone. Bound: the flags' parser takes the fixed part; lists of hosts are gone
/// through and not written out.
pub const ENVIRONMENT: Target = Target {
    name: "environment",
    run: fuzzing::environment,
    parsed: |input| {
        let variables: Vec<_> = input.split(|byte| *byte == b'\n').filter_map(variable).collect();
        let env = |name: &str| {
            let found = variables.iter().rev().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        };
        let alone = detect(&LaunchArgs::default(), &|_| None).map(|found| found.source().to_string());
        let found = detect(&LaunchArgs::default(), &env).map(|found| found.source().to_string());
        matches!((alone, found), (Ok(alone), Ok(found)) if alone != found)
    },
    bound: Bound {
        peak: Limit { fixed: 128 << 10, per_byte: 64 },
        total: Limit { fixed: 256 << 10, per_byte: 512 },
    },
    payloads: || WORLDS.iter().map(|world| payload(world)).collect(),
    envelope: lines,
};

fn variable(line: &[u8]) -> Option<(&'static str, String)> {
    let (first, value) = line.split_first()?;
    let name = fuzzing::NAMES[usize::from(*first) % fuzzing::NAMES.len()];
    Some((name, String::from_utf8_lossy(value).into_owned()))
}

fn payload(world: &[(&str, &str)]) -> Vec<u8> {
    let line = |(name, value): &(&str, &str)| {
        let place = fuzzing::NAMES.iter().position(|known| known == name)?;
        Some([&[place as u8], value.as_bytes()].concat())
    };
    world.iter().filter_map(line).collect::<Vec<_>>().join(&b'\n')
}

/// One world of each kind.
const WORLDS: [&[(&str, &str)]; 8] = [
    &[
        ("RANK", "3"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("GROUP_RANK", "1"),
        ("MASTER_ADDR", "head"),
        ("MASTER_PORT", "29500"),
        ("BRIGADE_LAUNCHED", "1"),
        ("BRIGADE_TOKEN", "secret"),
        ("BRIGADE_RESTART_COUNT", "2"),
        ("BRIGADE_PREEMPTION_GRACE", "30"),
    ],
    &[
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "4"),
        ("PET_NODE_RANK", "1"),
        ("PET_MASTER_ADDR", "head"),
        ("PET_MASTER_PORT", "29400"),
    ],
    &[(
        "CLUSTER_SPEC",
        r#"{"cluster":{"workerpool0":["a:2222"],"workerpool1":["b:2222","c:2222"]},"environment":"cloud","task":{"type":"workerpool1","index":0}}"#,
    )],
    &[(
        "TF_CONFIG",
        r#"{"cluster":{"chief":["h0:10"],"worker":["h1:11","[::1]:12"],"ps":["h3:13"]},"task":{"type":"worker","index":1}}"#,
    )],
    &[
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "80"),
    ],
    &[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")],
    &[
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_JOB_NODELIST", "gpu[01-03,07],login1"),
        ("SLURM_NNODES", "5"),
        ("SLURM_NODEID", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "5"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NTASKS", "10"),
        ("SLURM_NTASKS_PER_NODE", "2"),
    ],
    &[
        ("SLURM_JOB_ID", "1"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_NNODES", "2"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "2"),
        ("SLURM_NTASKS", "3"),
        ("SLURM_TASKS_PER_NODE", "2,1"),
    ],
];
