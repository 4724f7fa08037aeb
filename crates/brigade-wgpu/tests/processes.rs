//! Collectives between ranks that are processes and share one adapter. Each process is this test's own binary, started with a role
//! in its environment.

#![allow(clippy::unwrap_used)]

mod adapter;

use std::net::TcpListener;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use adapter::device_or_skip;
use brigade_comm::{AuthToken, Join, Timeouts, join};
use brigade_conformance::{
    Suite, all_gather_joins_in_rank_order, all_reduce_sums_any_length, messages_go_around_a_ring,
    reduce_scatter_gives_each_its_share, work_and_collectives_take_turns,
};
use brigade_core::Mesh;

const RANK: &str = "BRIGADE_TEST_RANK";
const RANKS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(90);

/// A process that is killed when the test ends, however it ends.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The body of each process.
#[test]
fn child() {
    let Ok(role) = std::env::var(RANK) else { return };
    let (rank, endpoint) = role.split_once(' ').unwrap();
    let rank: usize = rank.parse().unwrap();
    let world = join(Join {
        timeouts: Timeouts { init: TIMEOUT, step: TIMEOUT, ..Timeouts::default() },
        ..Join::new(rank, RANKS, endpoint, AuthToken::new("children"))
    })
    .unwrap();
    let (device, _) = brigade_wgpu::device(rank).unwrap();
    let groups = brigade_wgpu::groups(world.group(), Mesh::data_parallel(RANKS)).unwrap();
    let suite = Suite::new(device);
    for check in [
        all_reduce_sums_any_length,
        all_gather_joins_in_rank_order,
        reduce_scatter_gives_each_its_share,
        messages_go_around_a_ring,
        work_and_collectives_take_turns,
    ] {
        check(&suite, &**groups.world());
    }
    drop(groups);
    world.shutdown().unwrap();
}

#[test]
fn two_processes_share_an_adapter() {
    if std::env::var(RANK).is_ok() || device_or_skip().is_none() {
        return;
    }
    // This port was free a moment ago. If another program takes it meanwhile, the test fails and says so.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]).env(RANK, format!("{rank} 127.0.0.1:{port}"));
        Rank(command.spawn().unwrap())
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    let deadline = Instant::now() + TIMEOUT;
    while let Some(rank) = ranks.iter_mut().position(|rank| rank.0.try_wait().unwrap().is_none()) {
        assert!(Instant::now() < deadline, "rank {rank} still runs after {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(20));
    }
    for (number, rank) in ranks.iter_mut().enumerate() {
        assert!(rank.0.wait().unwrap().success(), "rank {number} failed");
    }
}
