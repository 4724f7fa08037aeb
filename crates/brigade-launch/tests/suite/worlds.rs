//! Worlds that tests start: in this process, and by a launcher that is a process of its own.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio, exit},
    sync::Arc,
    thread,
    time::Duration,
};

use brigade_launch::{
    AuthToken, Event, LaunchConfig, NodeInfo, Outcome, RankFailure, Source, launch, parse_token,
    stop_launches,
};

use crate::process::{has_role, itself, wait_until};

pub fn shell(script: &str, nproc: usize, dir: &Path) -> LaunchConfig {
    let mut launch = LaunchConfig::local("sh", nproc, AuthToken::random().unwrap(), dir.join("logs"));
    launch.args = vec!["-c".into(), script.into()];
    launch.env = vec![("DIR".into(), dir.into()), ("SELF".into(), env::current_exe().unwrap().into())];
    launch
}

/// A script that becomes one of this binary's roles.
pub fn becomes(role: &str) -> String {
    format!(r#"TEST_ROLE={role} exec "$SELF" --exact {role} --nocapture"#)
}

/// Launches here and checks that nothing is left of the ranks, not even a zombie.
pub fn run(what: &LaunchConfig) -> (Outcome, Vec<Event>) {
    let mut events = vec![];
    let outcome = launch(what, &mut |event| events.push(event)).unwrap();
    for event in &events {
        if let Event::Started { pid, .. } = event {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
        }
    }
    (outcome, events)
}

pub fn failure(outcome: Outcome) -> RankFailure {
    match outcome {
        Outcome::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

pub fn log(dir: &Path, rank: usize) -> String {
    fs::read_to_string(dir.join(format!("logs/rank-{rank}.log"))).unwrap()
}

/// The process ids that the ranks have written to `$DIR/pid.*`, by name, once there are `n`.
pub fn pids(dir: &Path, n: usize) -> Vec<String> {
    let read = || -> Vec<String> {
        let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("pid."));
        files.sort();
        files
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok())
            .filter(|text| text.ends_with('\n'))
            .collect()
    };
    wait_until("the ranks run", || read().len() == n);
    read().into_iter().map(|text| text.trim().to_owned()).collect()
}

/// The letter of a process's state: `Z` is a zombie, `T` is stopped.
pub fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Running and not a zombie (an orphan's zombie is its new parent's to reap).
pub fn runs(pid: &str) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// This binary as a launcher of `sh -c script`, with its own pid, exit code and terminal.
pub fn launcher(script: &str, nproc: usize, dir: &Path) -> Command {
    let mut command = itself("worlds::launcher_process");
    command.env("TEST_SCRIPT", script).env("TEST_NPROC", nproc.to_string()).env("DIR", dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The launcher of one node of several, all on this machine.
pub fn node(script: &str, node: usize, nnodes: usize, port: u16, dir: &Path) -> Command {
    let mut command = launcher(script, 1, dir);
    command.env("TEST_NODE", format!("{node} {nnodes} {port}")).env("BRIGADE_TOKEN", "a-secret-of-all-nodes");
    command
}

/// Not a test by itself: the launcher that other tests start.
#[test]
fn launcher_process() {
    if !has_role("worlds::launcher_process") {
        return;
    }
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<f64>().unwrap());
    let seconds = |name: &str| number(name).map(Duration::from_secs_f64);
    let dir = env::var("DIR").unwrap();
    let nproc = number("TEST_NPROC").unwrap() as usize;
    let mut what = shell(&env::var("TEST_SCRIPT").unwrap(), nproc, dir.as_ref());
    if let Ok(program) = env::var("TEST_PROGRAM") {
        what.program = program.into();
    }
    what.tee = env::var("TEST_TEE").is_ok();
    what.blocks_signals = env::var("TEST_HOLDS").is_ok();
    what.grace_period = seconds("TEST_GRACE").unwrap_or(what.grace_period);
    what.preemption_grace = seconds("TEST_PREEMPTION_GRACE").unwrap_or(what.preemption_grace);
    what.heartbeat_timeout = seconds("TEST_HEARTBEAT").or(what.heartbeat_timeout);
    what.stopped_timeout = seconds("TEST_STOPPED").unwrap_or(what.stopped_timeout);
    what.restart_delay = seconds("TEST_PAUSE").unwrap_or(what.restart_delay);
    what.host_timeout = seconds("TEST_HOST").unwrap_or(what.host_timeout);
    what.init_timeout = seconds("TEST_INIT").unwrap_or(what.init_timeout);
    what.max_restarts = number("TEST_RESTARTS").unwrap_or(0.0) as u32;
    if let Ok(node) = env::var("TEST_NODE") {
        let address = env::var("TEST_ADDRESS").unwrap_or("127.0.0.1".into());
        let numbers: Vec<usize> = node.split(' ').map(|word| word.parse().unwrap()).collect();
        what = what.on_node(&NodeInfo {
            nnodes: numbers[1],
            min_nodes: numbers.get(3).copied().unwrap_or(numbers[1]),
            node_rank: numbers[0],
            nproc_per_node: None,
            endpoint: Some(format!("{address}:{}", numbers[2]).parse().unwrap()),
            source: Source::Flags,
            overridden: None,
        });
        what.token = parse_token(&env::var("BRIGADE_TOKEN").unwrap()).unwrap();
    }
    what.elastic.last_call = seconds("TEST_LAST_CALL").unwrap_or(what.elastic.last_call);
    what.elastic.resize_interval = seconds("TEST_RESIZE").unwrap_or(what.elastic.resize_interval);
    what.elastic.configuration = env::var("TEST_CONFIGURATION").unwrap_or_default();
    if let Some(samples) = number("TEST_DIVIDES").map(|samples| samples as usize) {
        // What follows the script are its name and arguments.
        what.args.push("sh".into());
        what.elastic.node_count_args = Arc::new(move |nodes| match samples.is_multiple_of(nodes) {
            true => Ok(vec!["--nodes".into(), nodes.to_string()]),
            false => Err(format!("{nodes} does not divide {samples}")),
        });
    }
    if let Ok(file) = env::var("TEST_STOP_AT") {
        thread::spawn(move || {
            wait_until("the file that says when", || Path::new(&file).exists());
            stop_launches();
        });
    }
    let outcome = launch(&what, &mut |event| match event {
        Event::Interrupted { signal } | Event::Preempted { signal } => eprintln!("got {signal}"),
        Event::Resizing { reason } => eprintln!("resizing: {reason}"),
        Event::NodeLeft { node, reason, .. } => eprintln!("left: node {node:?}: {reason}"),
        Event::Assembled { nodes, before, unused, .. } => {
            let numbers =
                |nodes: Vec<(usize, String)>| nodes.into_iter().map(|(node, _)| node).collect::<Vec<_>>();
            eprintln!("assembled: {:?} after {:?}; {unused:?}", numbers(nodes), numbers(before));
        }
        Event::Restarting { number, of, failure } => eprintln!("restart {number} of {of}: {failure}"),
        _ => {}
    });
    match outcome {
        Ok(outcome) => {
            eprintln!("outcome: {outcome}");
            exit(outcome.exit_code().into());
        }
        Err(error) => {
            eprintln!("error: {error}");
            exit(error.exit_code().into());
        }
    }
}
