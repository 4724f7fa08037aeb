//! Ranks as real processes: this test's own binary, started again with a role in its environment.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, RawFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use brigade_comm::{AuthToken, DType, Join, ReduceOp, Result, Timeouts, Transport, join};
use rustix::net::{AddressFamily, getpeername};
use rustix::process::{Pid, Signal, kill_process};

use crate::worlds::{PATIENT, SOON};

const RANK: &str = "BRIGADE_TEST_RANK";

/// The deadline of an operation: longer than it takes to notice anything without it.
pub const STEP_SECONDS: u64 = 100;
/// The same, where the deadline is what notices it.
const HASTY_SECONDS: u64 = 3;

/// A process that is killed when the test ends, however it ends.
pub struct Rank {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Rank {
    /// A process that is just being started, whose output is piped.
    pub fn new(mut process: Child) -> Self {
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// The next line of the form `rank: …` that the process prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(text) = line.split("rank: ").nth(1) {
                return text.trim().into();
            }
            line.clear();
        }
        "nothing".into()
    }
}

/// What each child does: reduces, or passes messages around, until something fails. It prints the first success and
/// the failure.
#[test]
fn child() {
    let Ok(role) = std::env::var(RANK) else { return };
    let [work, rank, world_size, endpoint, transport, step, host, ref interfaces @ ..] =
        role.split(' ').collect::<Vec<_>>()[..]
    else {
        panic!("{role}")
    };
    let seconds = |text: &str| Duration::from_secs(text.parse().unwrap());
    let world = match join(Join {
        transport: if transport == "tcp" { Transport::Tcp } else { Transport::Auto },
        timeouts: Timeouts { step: seconds(step), host: seconds(host), ..PATIENT },
        interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        ..Join::new(rank.parse().unwrap(), world_size.parse().unwrap(), endpoint, AuthToken::new("children"))
    }) {
        Ok(world) => world,
        Err(error) => {
            println!("rank: {error}");
            return;
        }
    };
    let reduce = |elements: usize, vandalise: &dyn Fn()| -> Result<()> {
        let mut slice = vec![1.0f32; elements];
        world.group().all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
        println!("rank: reduced");
        vandalise();
        loop {
            world.group().all_reduce_in_place(&mut slice, ReduceOp::Max)?;
        }
    };
    let pass = || -> Result<()> {
        let group = world.group();
        let (rank, n) = (group.rank(), group.size());
        let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
        let awaited = || group.recv_message(previous, 5 << 20);
        let mut ahead = awaited();
        for turn in 0.. {
            let size = [0, 1, 5 << 20][turn % 3];
            let message = std::mem::replace(&mut ahead, awaited());
            let sent = group.send(vec![rank as u8; size], DType::U8, next);
            assert!(message.wait()? == vec![previous as u8; size]);
            sent.wait()?;
            if turn == 3 {
                println!("rank: passed");
            }
        }
        Ok(())
    };
    let chain = || -> Result<()> {
        let group = world.group();
        let (rank, last) = (group.rank(), group.size() - 1);
        for step in 0.. {
            let mut activation = vec![0.5f32; 40_000];
            if rank > 0 {
                activation = group.recv(activation, DType::F32, rank - 1).wait()?;
            }
            std::thread::sleep(Duration::from_millis(1));
            if rank < last {
                group.send(activation, DType::F32, rank + 1).wait()?;
            }
            group.all_reduce_in_place(&mut [1.0f32; 10_000], ReduceOp::Sum)?;
            if step == 3 {
                println!("rank: chained");
            }
        }
        Ok(())
    };
    let reduce_on = || -> Result<()> {
        world.group().barrier()?;
        println!("rank: reduced");
        loop {
            world.group().all_reduce_in_place(&mut [1.0f32; 10_000], ReduceOp::Sum)?;
            println!("rank: reduced at {}", UNIX_EPOCH.elapsed().unwrap().as_millis());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let outcome = match work {
        "reduce-on" => reduce_on(),
        "reduce" => reduce(3_000_000, &|| {}),
        "reduce-64-MiB" => reduce(16 << 20, &|| {}),
        // The rendezvous comes first and becomes the control connection; what comes later are links.
        "spoil-control" if rank == "1" => reduce(3_000_000, &|| write_garbage(&connections()[..1])),
        "spoil-data" if rank == "1" => reduce(3_000_000, &|| write_garbage(&connections()[1..])),
        "spoil-control" | "spoil-data" => reduce(3_000_000, &|| {}),
        "pass" => pass(),
        _ => chain(),
    };
    println!("rank: {}", outcome.unwrap_err());
}

/// The TCP connections of this process, in the order in which they were made.
fn connections() -> Vec<RawFd> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut descriptors: Vec<RawFd> =
        descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    descriptors.sort_unstable();
    // SAFETY: the descriptors of this process stay open while it only looks at them.
    let peer = |fd: &RawFd| getpeername(unsafe { BorrowedFd::borrow_raw(*fd) });
    descriptors.retain(|fd| {
        let peer = peer(fd).ok().flatten();
        peer.is_some_and(|peer| peer.address_family() == AddressFamily::INET)
    });
    descriptors
}

fn write_garbage(connections: &[RawFd]) {
    assert!(!connections.is_empty());
    // The others get the time to say that they are at work.
    std::thread::sleep(Duration::from_millis(500));
    for fd in connections {
        // SAFETY: as above.
        rustix::io::write(unsafe { BorrowedFd::borrow_raw(*fd) }, &[0xa5; 1000]).unwrap();
    }
}

fn start(work: &str, n: usize, transport: &str) -> Vec<Rank> {
    start_with(work, n, transport, [STEP_SECONDS, 60])
}

fn start_with(work: &str, n: usize, transport: &str, [step, host]: [u64; 2]) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("127.0.0.1:{port}");
    let ranks =
        (0..n).map(|rank| spawn(None, &format!("{work} {rank} {n} {endpoint} {transport} {step} {host}")));
    begun(ranks.collect())
}

/// Starts a process with a role, if given in a network namespace.
pub fn spawn(namespace: Option<&str>, role: &str) -> Rank {
    let own = std::env::current_exe().unwrap();
    let mut command = match namespace {
        None => Command::new(own),
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(own);
            command
        }
    };
    command.args(["processes::child", "--exact", "--nocapture", "--test-threads=1"]).env(RANK, role);
    Rank::new(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

/// Waits until all ranks are at work.
pub fn begun(mut ranks: Vec<Rank>) -> Vec<Rank> {
    for rank in &mut ranks {
        assert!(["reduced", "passed", "chained"].contains(&rank.line().as_str()));
    }
    ranks
}

fn a_killed_rank_is_noticed(work: &str, transport: &str, victim: usize) {
    let mut ranks = start(work, 3, transport);
    std::thread::sleep(Duration::from_millis(20));
    ranks[victim].signal(Signal::KILL);
    let killed = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let line = process.line();
        assert!(line.contains(&format!("rank {victim} died")), "rank {rank} says: {line}");
    }
    assert!(killed.elapsed() < SOON, "took {:?}", killed.elapsed());
}

#[test]
fn a_killed_rank_is_noticed_over_shared_memory() {
    a_killed_rank_is_noticed("reduce", "auto", 1);
}

#[test]
fn a_killed_rank_is_noticed_over_tcp() {
    a_killed_rank_is_noticed("reduce", "tcp", 2);
}

#[test]
fn a_killed_rank_0_is_noticed() {
    a_killed_rank_is_noticed("reduce", "auto", 0);
}

#[test]
fn a_killed_sender_is_noticed_over_shared_memory() {
    a_killed_rank_is_noticed("pass", "auto", 1);
}

#[test]
fn a_killed_sender_is_noticed_over_tcp() {
    a_killed_rank_is_noticed("pass", "tcp", 2);
}

/// Stops one rank of a chain at a moment that nobody chose: every other rank must name it, and it alone.
fn a_stopped_rank_is_named(victim: usize, transport: &str) {
    let mut ranks = start_with("chain", 4, transport, [HASTY_SECONDS, 60]);
    let moment = UNIX_EPOCH.elapsed().unwrap().subsec_micros();
    std::thread::sleep(Duration::from_micros(u64::from(moment) % 20_000));
    ranks[victim].signal(Signal::STOP);
    let stopped = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let line = process.line();
        let named = line.starts_with(&format!("rank {victim} does not answer"));
        assert!(named, "rank {rank} says: {line}");
    }
    assert!(stopped.elapsed() < SOON, "took {:?}", stopped.elapsed());
}

#[test]
fn a_stopped_rank_0_is_named() {
    a_stopped_rank_is_named(0, "auto");
}

#[test]
fn a_stopped_rank_in_the_middle_is_named() {
    a_stopped_rank_is_named(1, "auto");
}

#[test]
fn a_stopped_rank_in_the_middle_is_named_over_tcp() {
    a_stopped_rank_is_named(2, "tcp");
}

#[test]
fn a_stopped_last_rank_is_named() {
    a_stopped_rank_is_named(3, "auto");
}

/// What ranks have that could outlive them.
struct Traces {
    pids: Vec<u32>,
    sockets: Vec<String>,
    shared: Vec<String>,
}

impl Traces {
    fn of(ranks: &[Rank]) -> Self {
        let pids: Vec<u32> = ranks.iter().map(|rank| rank.process.id()).collect();
        let sockets: Vec<String> = pids.iter().flat_map(|pid| unix_sockets_of(*pid)).collect();
        Self { pids, sockets, shared: shared_memory() }
    }

    fn assert_gone(&self) {
        assert_eq!(shared_memory(), self.shared);
        let open = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(self.sockets.iter().all(|name| !open.contains(name)));
        assert!(self.pids.iter().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap()));
    }
}

fn shared_memory() -> Vec<String> {
    let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let shared = shared.map(|entry| entry.file_name().to_string_lossy().into_owned());
    shared.filter(|name| name.contains("brigade")).collect()
}

/// Every rank but the victim says why, ends by itself, and leaves nothing.
fn all_end(mut ranks: Vec<Rank>, traces: &Traces, victim: usize, words: &str) {
    let start = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let line = process.line();
        assert!(line.contains(words), "rank {rank} says: {line}");
        process.process.wait().unwrap();
    }
    assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
    drop(ranks);
    traces.assert_gone();
}

fn a_death_inside_a_large_operation_ends_all(transport: &str, victim: usize) {
    let ranks = start("reduce-64-MiB", 3, transport);
    let traces = Traces::of(&ranks);
    std::thread::sleep(Duration::from_millis(30));
    ranks[victim].signal(Signal::KILL);
    all_end(ranks, &traces, victim, &format!("rank {victim} died"));
}

fn garbage_ends_all(work: &str, words: &str) {
    let ranks = start_with(work, 3, "tcp", [STEP_SECONDS, 3]);
    let traces = Traces::of(&ranks);
    all_end(ranks, &traces, 1, words);
}

#[test]
fn a_death_inside_a_large_operation_ends_all_over_shared_memory() {
    a_death_inside_a_large_operation_ends_all("auto", 1);
}

#[test]
fn a_death_inside_a_large_operation_ends_all_over_tcp() {
    a_death_inside_a_large_operation_ends_all("tcp", 2);
}

#[test]
fn garbage_on_the_control_connection_ends_all() {
    garbage_ends_all("spoil-control", "rank 1 died: the rest of a message from it has not arrived for");
}

#[test]
fn garbage_on_a_link_ends_all() {
    garbage_ends_all("spoil-data", "cannot understand rank 1");
}

#[test]
fn killed_ranks_leave_nothing_behind() {
    let ranks = start("reduce", 2, "auto");
    let traces = Traces::of(&ranks);
    assert_eq!(traces.sockets.len(), 2, "{:?}", traces.sockets);
    assert!(mapped(traces.pids[0], "memfd:brigade"));
    drop(ranks);
    traces.assert_gone();
}

/// The names of the listening Unix sockets of a process that are Brigade's.
fn unix_sockets_of(pid: u32) -> Vec<String> {
    let open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_str()?.strip_prefix("socket:[")?.to_owned()))
        .collect();
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (inode, name) = (fields.get(6)?, fields.get(7)?);
            let own = open.iter().any(|socket| socket.trim_end_matches(']') == *inode);
            (own && name.starts_with("@brigade-")).then(|| (*name).to_owned())
        })
        .collect();
    names.dedup();
    names
}

fn mapped(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains(name)
}
