//! Tasks that Slurm's `srun` started.

mod hostlist;

use brigade_comm::MAX_WORLD_SIZE;

use super::{
    detected::{Detected, NodeInfo, RankInfo, Source},
    variables::Variables,
};
use crate::{
    endpoint::Endpoint,
    error::{Error, Result},
};

const SET: [&str; 1] = ["SLURM_PROCID"];
const HINT: &str = "start the ranks with srun, or give --standalone for a world on this machine alone";

/// The ports that jobs are spread over: below the ports that systems hand out by themselves.
const PORTS: std::ops::Range<u16> = 15_000..25_000;

/// The number of the step, as newer and older versions of Slurm call it.
const STEP: [&str; 2] = ["SLURM_STEP_ID", "SLURM_STEPID"];

/// The numbers from here on are not those of steps that `srun` started: the shell of `salloc` has 4294967290.
const RESERVED_STEPS: usize = 0xffff_fff0;

/// Whether this is no task of `srun`, but was started by a batch script or by the shell of `salloc` on the only node of their job. Both have the
/// variables of a task, with `SLURM_PROCID` 0.
pub fn is_script_on_one_node(env: Variables) -> bool {
    let nodes = env.get(first_set(env, &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"]));
    let is_task = |step: Option<usize>| step.is_some_and(|step| step < RESERVED_STEPS);
    nodes.as_deref() == Some("1") && step(env).is_ok_and(|step| !is_task(step))
}

fn step(env: Variables) -> Result<Option<usize>> {
    env.number(first_set(env, &STEP), 0, u32::MAX as usize)
}

/// Refuses a process that is no task of `srun`.
fn check_task(env: Variables) -> Result<()> {
    let step = env.need(step(env)?, STEP[0], &SET, HINT)?;
    if step < RESERVED_STEPS {
        return Ok(());
    }
    let allowed = format!("this shell or script is no task of srun; {HINT}");
    Err(Error::variable(first_set(env, &STEP), &step.to_string(), allowed))
}

/// The first of these variables that is set, else the last.
fn first_set<'a>(env: Variables, names: &[&'a str]) -> &'a str {
    let set = names.iter().find(|name| env.get(name).is_some());
    set.or(names.last()).copied().unwrap_or_default()
}

/// The rank that is this Slurm task; or, with one task a node and `--nproc-per-node` given, the node.
///
/// Rank 0's host is `MASTER_ADDR`, else the first host of the step's (or job's) node list, else, on a single
/// node, this one. The port is `MASTER_PORT`, else `15000 + SLURM_JOB_ID mod 10000`, so that all tasks of a
/// job agree and jobs differ.
pub fn read(env: Variables, nproc_given: bool) -> Result<Detected> {
    check_task(env)?;
    let tasks = first_set(env, &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]);
    let world_size = env.need(env.number(tasks, 1, MAX_WORLD_SIZE)?, tasks, &SET, HINT)?;
    let rank = env.need(env.index("SLURM_PROCID", world_size, tasks)?, "SLURM_PROCID", &SET, HINT)?;
    let nodes = first_set(env, &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"]);
    let nnodes = env.number(nodes, 1, MAX_WORLD_SIZE)?.unwrap_or(1);
    let node_rank = env.index("SLURM_NODEID", nnodes, nodes)?;
    let endpoint = endpoint(env, nnodes)?;
    if nproc_given && world_size == nnodes && nnodes > 1 {
        return Ok(Detected::Node(NodeInfo {
            nnodes,
            min_nodes: nnodes,
            node_rank: rank,
            nproc_per_node: None,
            endpoint: Some(endpoint),
            source: Source::Slurm,
            overridden: None,
        }));
    }
    let local_world_size = local_world_size(env, world_size, nnodes, node_rank)?;
    let local_rank = env.index("SLURM_LOCALID", local_world_size, "the number of tasks on this node")?;
    Ok(Detected::Rank(RankInfo {
        rank,
        local_rank: local_rank.unwrap_or(rank % local_world_size),
        world_size,
        local_world_size,
        node_rank,
        endpoint,
        source: Source::Slurm,
    }))
}

fn endpoint(env: Variables, nnodes: usize) -> Result<Endpoint> {
    let job = env.number("SLURM_JOB_ID", 0, u32::MAX as usize)?;
    let from_job = |job: usize| PORTS.start + (job % PORTS.len()) as u16;
    let port = match (env.port("MASTER_PORT")?, job) {
        (Some(port), _) => port,
        (None, job) => from_job(env.need(job, "SLURM_JOB_ID", &SET, HINT)?),
    };
    if let Some(host) = env.get("MASTER_ADDR") {
        return Endpoint::new(&host, port).map_err(|allowed| Error::variable("MASTER_ADDR", &host, allowed));
    }
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
    let Some((name, list)) = lists.iter().find_map(|name| Some((name, env.get(name)?))) else {
        return match nnodes {
            1 => Ok(Endpoint { host: "127.0.0.1".into(), port }),
            _ => env.need(None, "SLURM_JOB_NODELIST", &SET, HINT),
        };
    };
    hostlist::first_host(&list).and_then(|host| Endpoint::new(&host, port)).map_err(|reason| {
        Error::variable(name, &list, format!("it must be a list like node[01-03,07],login1: {reason}"))
    })
}

/// The number of tasks on this node: `SLURM_STEP_TASKS_PER_NODE` or `SLURM_TASKS_PER_NODE` (`2(x3),1`), else
/// `SLURM_NTASKS_PER_NODE`, else an even spread.
fn local_world_size(
    env: Variables,
    world_size: usize,
    nnodes: usize,
    node_rank: Option<usize>,
) -> Result<usize> {
    let most = world_size;
    let lists = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
    let size = if nnodes == 1 {
        Some(world_size)
    } else if let Some((name, list)) = lists.iter().find_map(|name| Some((name, env.get(name)?))) {
        let size = hostlist::tasks_on_node(&list, node_rank.unwrap_or(0)).filter(|n| (1..=most).contains(n));
        let allowed = || format!("it must give this node 1 to {most} tasks, in a list like 2(x3),1");
        Some(size.ok_or_else(|| Error::variable(name, &list, allowed()))?)
    } else {
        env.number("SLURM_NTASKS_PER_NODE", 1, most)?
    };
    Ok(size.unwrap_or(world_size.div_ceil(nnodes)))
}
