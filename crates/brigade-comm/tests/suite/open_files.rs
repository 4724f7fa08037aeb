//! Open files: the limit is raised as far as it may be, and one that is reached is named.

use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Join, ReduceOp, Timeouts, Transport, join};
use rustix::process::{Resource, getrlimit};

use crate::processes::Rank;
use crate::worlds::{Kind, listener, run_well};

const ROLE: &str = "BRIGADE_TEST_FILES";

/// What each child does: joins, as rank 0 with few descriptors left to take, and prints the outcome.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if let Some(n) = role.strip_prefix("sockets of ") {
        return count_sockets(n.parse().unwrap());
    }
    let [rank, world_size, endpoint, left] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let (rank, world_size, left): (usize, usize, usize) =
        (rank.parse().unwrap(), world_size.parse().unwrap(), left.parse().unwrap());
    let mut others = Vec::new();
    if left > 0 {
        others.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        others.truncate(others.len() - left);
    }
    let world = join(Join {
        transport: Transport::Tcp,
        timeouts: Timeouts { init: Duration::from_secs(60), ..Timeouts::default() },
        ..Join::new(rank, world_size, endpoint, AuthToken::new("children"))
    });
    match world {
        Ok(world) => {
            println!("rank: may open {:?}", getrlimit(Resource::Nofile).current);
            world.shutdown().unwrap();
        }
        Err(error) => println!("rank: {error}"),
    }
}

/// Prints how many sockets a world over TCP has after the first operations, with all of its ranks in this process.
fn count_sockets(n: usize) {
    let counts = run_well(Kind::Tcp, n, |group| {
        group.all_reduce_in_place(&mut [1.0f32; 100], ReduceOp::Sum)?;
        group.all_gather_in_place(&mut vec![1u8; n])?;
        group.barrier()?;
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let is_socket = |path: PathBuf| path.to_string_lossy().starts_with("socket:");
        let sockets = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(is_socket)).count();
        group.barrier()?;
        Ok(sockets)
    });
    println!("rank: {}", counts[0]);
}

/// Starts a rank that may open `soft` files, and raise that to `hard`.
fn start(role: &str, soft: usize, hard: usize) -> Rank {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"")]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["open_files::child", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    Rank::new(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

fn endpoint() -> String {
    listener().local_addr().unwrap().to_string()
}

#[test]
fn a_rank_may_open_as_many_files_as_it_may_allow_itself() {
    let at = endpoint();
    let ranks = [0, 1].map(|rank| start(&format!("{rank} 2 {at} 0"), 60, 200));
    for mut rank in ranks {
        assert_eq!(rank.line(), "may open Some(200)");
    }
}

#[test]
fn a_limit_that_cannot_be_enough_is_named_before_anybody_waits() {
    let line = start(&format!("0 100 {} 0", endpoint()), 80, 80).line();
    assert!(
        line.contains("may have 80 files open") && line.contains("a world of 100 may need 428"),
        "{line}"
    );
}

#[test]
fn a_limit_that_is_reached_while_ranks_come_is_named() {
    let at = endpoint();
    let begun = Instant::now();
    let mut ranks: Vec<_> = (1..8).map(|rank| start(&format!("{rank} 8 {at} 0"), 100, 100)).collect();
    // A listener, a socket and some descriptors to wake threads; then a few ranks of seven.
    ranks.push(start(&format!("0 8 {at} 8"), 100, 100));
    let line = ranks[7].line();
    assert!(line.contains("connection: ") && line.contains("its limit of 100 open files"), "{line}");
    assert!(line.contains("ulimit -n") && line.contains("LimitNOFILE"), "{line}");
    assert!(begun.elapsed() < Duration::from_secs(40), "took {:?}", begun.elapsed());
}

#[test]
fn strangers_that_take_all_files_do_not_end_a_world() {
    let at = endpoint();
    let mut zero = start(&format!("0 2 {at} 16"), 100, 100);
    let connect = || {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match TcpStream::connect(&at) {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let strangers: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    // Longer than a shortage without handshakes may last.
    std::thread::sleep(Duration::from_secs(7));
    drop(strangers);
    let mut one = start(&format!("1 2 {at} 0"), 100, 100);
    for rank in [&mut zero, &mut one] {
        assert_eq!(rank.line(), "may open Some(100)");
    }
}

#[test]
fn a_pair_connects_when_it_first_speaks() {
    let sockets: usize = start("sockets of 48", 8192, 8192).line().parse().unwrap();
    // Two ends of 47 control connections and two listeners a rank; each rank's links to five others of its row and seven of its
    // column, where all pairs would need 4512; and a few of the test's own.
    let needed = 2 * 47 + 2 * 48 + 48 * (5 + 7);
    assert!((needed..needed + 10).contains(&sockets), "{sockets}");
}
