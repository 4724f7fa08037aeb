//! Replicas on hosts of their own: how many bytes of a step leave a host.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use brigade::comm::{AuthToken, Join, ProcessGroup, join};
use brigade::core::{CHUNK, CollectiveKind, Collectives, Groups, Mesh, Zero};
use brigade_host::{HostCollectives, MemorySpace, SubgroupArgs, subgroup};

use crate::row::{RATE, Row};

/// Ranks of a host.
const PER_HOST: usize = 2;

/// What a rank sent in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    /// To ranks of other hosts, of all groups and operations.
    between_hosts: u64,
    /// The sums of gradients over replicas.
    over_replicas: u64,
}

/// Runs a step on hosts of two ranks.
fn step(row: &Row) -> Vec<Sent> {
    let (mesh, listener) = (&row.mesh(), &TcpListener::bind("127.0.0.1:0").unwrap());
    thread::scope(|scope| {
        let rank = |rank: usize| scope.spawn(move || step_of_rank(row, mesh, rank, listener));
        let ranks: Vec<_> = (0..mesh.world()).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn step_of_rank(row: &Row, mesh: &Mesh, rank: usize, listener: &TcpListener) -> Sent {
    let endpoint = listener.local_addr().unwrap().to_string();
    let world = join(Join {
        listener: (rank == 0).then(|| listener.try_clone().unwrap()),
        host: Some(format!("host {}", rank / PER_HOST)),
        ..Join::new(rank, mesh.world(), endpoint, AuthToken::new("ranks of several hosts"))
    });
    let world = world.unwrap();
    let all: Arc<dyn ProcessGroup> = Arc::new(world.group().clone());
    let mut made = vec![all.clone()];
    let over = |group: Arc<dyn ProcessGroup>| -> Arc<dyn Collectives> {
        Arc::new(HostCollectives::new(group, MemorySpace::Host))
    };
    let groups = Groups::new(mesh.clone(), over(all.clone()), |axes| {
        let SubgroupArgs { name, color, key } = subgroup(mesh, rank, axes);
        let group = all.split(&name, color, key)?;
        made.push(group.clone());
        Ok::<_, brigade::comm::Error>(over(group))
    });
    let groups = groups.unwrap();
    let crossed = |made: &[Arc<dyn ProcessGroup>]| -> u64 {
        made.iter().map(|group| group.stats().between_hosts()).sum()
    };
    let mut engine = row.engine(groups.clone()).unwrap();
    let before = crossed(&made);
    let report = engine.step(row.batches(0, &groups), RATE).unwrap();
    let between_hosts = crossed(&made) - before;
    let over_replicas = report.traffic.get(&CollectiveKind::AllReduce).map_or(0, |(_, bytes)| *bytes);
    drop((engine, groups));
    world.shutdown().unwrap();
    Sent { between_hosts, over_replicas }
}

/// What more blocks add: numbers of the whole step, such as losses, are as many with any number of blocks.
fn added(row: &Row) -> Vec<Sent> {
    let [few, many] = [2, 4].map(|layers| step(&Row { layers, ..row.clone() }));
    let added = |(few, many): (&Sent, &Sent)| Sent {
        between_hosts: many.between_hosts - few.between_hosts,
        over_replicas: many.over_replicas - few.over_replicas,
    };
    few.iter().zip(&many).map(added).collect()
}

/// Two replicas send each other their shard of the gradients, `2 (R - 1) / R` times its bytes, and nothing else.
#[test]
fn with_a_replica_on_each_host_only_sums_of_shards_leave_a_host() {
    for stage in 1..=3 {
        let zero = Zero { stage, ..Zero::default() };
        let row = Row { replicate: 2, dp: PER_HOST, micro_batches: 2, zero, ..Row::default() };
        // A block of width 12: two norms, four projections and a feed-forward of four times the width, in fp32, whose shards are whole chunks.
        let elements = (12 * 12 * 12 + 13 * 12usize).next_multiple_of(CHUNK * PER_HOST);
        let shard = (4 * elements / PER_HOST) as u64;
        let with_replicas = added(&row);
        for sent in &with_replicas {
            assert_eq!((sent.between_hosts, sent.over_replicas), (2 * shard, 2 * shard), "stage {stage}");
        }
        // Without replicas, both hosts have shards of all that each micro-batch gathers or reduces.
        if stage > 1 {
            let sharded = added(&Row { replicate: 1, dp: 4, ..row });
            let mut pairs = sharded.iter().zip(&with_replicas);
            assert!(pairs.all(|(a, b)| a.between_hosts > b.between_hosts), "{stage}: {sharded:?}");
        }
    }
}
