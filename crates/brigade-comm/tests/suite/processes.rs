//! Ranks as real processes: this test's own binary, started again with a role in its environment.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use brigade_comm::{DType, Join, ReduceOp, Result, Timeouts, Token, Transport, join};
use rustix::process::{Pid, Signal, kill_process};

const RANK: &str = "BRIGADE_TEST_RANK";
const STEP_SECONDS: u64 = 4;

/// A process that is killed when the test ends, however it ends.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rank {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// The next line of the form `rank: …` that the process prints.
    fn line(&mut self) -> String {
        let mut reader = BufReader::new(self.0.stdout.as_mut().unwrap());
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 0 {
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
    let [work, rank, world_size, port, transport] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let world = join(Join {
        rank: rank.parse().unwrap(),
        world_size: world_size.parse().unwrap(),
        endpoint: format!("127.0.0.1:{port}"),
        listener: None,
        token: Token::new("children"),
        transport: if transport == "tcp" { Transport::Tcp } else { Transport::Auto },
        timeouts: Timeouts { init: Duration::from_secs(60), step: Duration::from_secs(STEP_SECONDS) },
        restart: 0,
        host: None,
    })
    .unwrap();
    let reduce = || -> Result<()> {
        let mut slice = vec![1.0f32; 3_000_000];
        world.group().all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
        println!("rank: reduced");
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
    println!("rank: {}", if work == "reduce" { reduce() } else { pass() }.unwrap_err());
}

fn start(work: &str, n: usize, transport: &str) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["processes::child", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(RANK, format!("{work} {rank} {n} {port} {transport}"));
        Rank(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    };
    let mut ranks: Vec<_> = (0..n).map(start).collect();
    for rank in &mut ranks {
        assert!(["reduced", "passed"].contains(&rank.line().as_str()));
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
    assert!(killed.elapsed() < Duration::from_secs(2), "took {:?}", killed.elapsed());
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

#[test]
fn a_stopped_rank_is_named_at_the_deadline() {
    let mut ranks = start("reduce", 3, "auto");
    ranks[2].signal(Signal::STOP);
    let stopped = Instant::now();
    for process in &mut ranks[..2] {
        let line = process.line();
        // A rank that waits for the stopped one in the same piece of the buffer looks the same from here.
        let named = line.contains("[2") || line.contains("2]");
        assert!(line.contains("all_reduce") && named, "{line}");
    }
    let taken = stopped.elapsed().as_secs_f64();
    assert!(taken > STEP_SECONDS as f64 * 0.5 && taken < STEP_SECONDS as f64 + 4.0, "took {taken} s");
}

#[test]
fn killed_ranks_leave_nothing_behind() {
    let names = || -> Vec<String> {
        let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let shared = shared.map(|entry| entry.file_name().to_string_lossy().into_owned());
        shared.filter(|name| name.contains("brigade")).collect()
    };
    let before = names();
    let ranks = start("reduce", 2, "auto");
    let pids: Vec<u32> = ranks.iter().map(|rank| rank.0.id()).collect();
    let sockets: Vec<String> = pids.iter().flat_map(|pid| unix_sockets_of(*pid)).collect();
    assert_eq!(sockets.len(), 2, "{sockets:?}");
    assert!(mapped(pids[0], "memfd:brigade"));
    drop(ranks);
    assert_eq!(names(), before);
    let open = fs::read_to_string("/proc/net/unix").unwrap();
    assert!(sockets.iter().all(|name| !open.contains(name)));
    assert!(pids.iter().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap()));
}

/// The names of the listening Unix sockets of a process that are Brigade's.
fn unix_sockets_of(pid: u32) -> Vec<String> {
    let open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
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
