//! Ranks that reach other hosts by chosen interfaces. Addresses of the loopback interface stand for several interfaces.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use brigade_comm::{DType, Error, Group, Join, ReduceOp, Result, join};
use rustix::net::{getpeername, getsockname};

use crate::worlds::{Kind, PATIENT, joining, listener};

/// Runs `work` on two hosts of two ranks, whose interfaces are these.
fn on_two_hosts<T: Send>(
    interfaces: [&[&str]; 2],
    work: impl Fn(&Group) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let (listener, work) = (&listener(), &work);
    std::thread::scope(|scope| {
        let ranks = (0..4).map(|rank| {
            let chosen = interfaces[rank / 2].iter().map(|entry| (*entry).to_owned());
            let joining = Join {
                interfaces: chosen.collect(),
                local_rank: rank % 2,
                ..joining(Kind::Mixed, rank, 4, listener, PATIENT)
            };
            scope.spawn(move || {
                let world = join(joining)?;
                let outcome = work(world.group())?;
                world.shutdown()?;
                Ok(outcome)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn errors(interfaces: [&[&str]; 2]) -> Vec<String> {
    let ranks = on_two_hosts(interfaces, |_| Ok(()));
    ranks.into_iter().map(|rank| rank.unwrap_err().to_string()).collect()
}

/// The addresses of both ends of this process's connections, from and to this network.
fn connections(network: &str) -> Vec<[String; 2]> {
    let ip = |address: Option<SocketAddr>| address.map(|address| IpAddr::to_string(&address.ip()));
    let ends = |fd| {
        // SAFETY: where another test closes a descriptor meanwhile, only its number is asked about.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let peer = getpeername(fd).ok()??;
        Some([ip(getsockname(fd).ok()?.try_into().ok())?, ip(peer.try_into().ok())?])
    };
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let descriptors = descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    descriptors.filter_map(ends).filter(|ends| ends.iter().any(|end| end.starts_with(network))).collect()
}

#[test]
fn links_between_hosts_are_made_from_and_to_the_chosen_addresses() {
    let interfaces = ["127.77.0.1", "127.77.0.2"];
    let ranks = on_two_hosts([&interfaces; 2], |group| {
        // Everybody sends to both ranks of the other host.
        let (rank, host) = (group.rank(), group.rank() / 2);
        let others = [2 - 2 * host, 3 - 2 * host];
        let sent = others.map(|other| group.send(vec![rank as u8; 9], DType::U8, other));
        for other in others {
            assert_eq!(group.recv_message(other, 9).wait()?, [other as u8; 9]);
        }
        sent.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
        let mut sum = vec![1.0f32; 300_000];
        group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert!(sum.iter().all(|sum| *sum == 4.0));
        group.barrier()?;
        let found = if rank == 0 { connections("127.77.") } else { Vec::new() };
        group.barrier()?;
        let addresses: Vec<_> = (0..4).map(|rank| group.locality(rank).address).collect();
        Ok((found, addresses))
    });
    let mut ranks: Vec<_> = ranks.into_iter().map(|rank| rank.unwrap()).collect();
    let expected = [0, 1, 0, 1].map(|local| Some(interfaces[local].parse().unwrap()));
    assert!(ranks.iter().all(|(_, addresses)| *addresses == expected));
    let found = ranks.swap_remove(0).0;
    // Of the eight transfers, two go each way; this process has both ends.
    for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let ends = [interfaces[from], interfaces[to]];
        let count = found.iter().filter(|connection| **connection == ends).count();
        assert!(count >= 4, "{ends:?}: {found:?}");
    }
    assert!(found.iter().flatten().all(|end| interfaces.contains(&end.as_str())), "{found:?}");
}

#[test]
fn each_host_has_its_own_list() {
    let ranks = on_two_hosts([&["127.79.0.1"], &["127.79.0.3", "lo"]], |group| {
        group.barrier()?;
        Ok((0..4).map(|rank| group.locality(rank).address.unwrap().to_string()).collect::<Vec<_>>())
    });
    for rank in ranks {
        assert_eq!(rank.unwrap(), ["127.79.0.1", "127.79.0.1", "127.79.0.3", "127.0.0.1"]);
    }
}

#[test]
fn without_a_list_no_address_is_known() {
    for rank in on_two_hosts([&[]; 2], |group| Ok(group.locality(group.rank()).address)) {
        assert_eq!(rank.unwrap(), None);
    }
}

#[test]
fn a_list_on_some_ranks_only_is_refused_on_all() {
    for said in errors([&["lo"], &[]]) {
        let reason =
            "ranks [0, 1] choose interfaces (comm.interfaces), ranks [2, 3] do not; set it on every host";
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn ipv4_beside_ipv6_is_refused_on_all() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6");
        return;
    }
    for said in errors([&["127.0.0.1"], &["::1"]]) {
        let reason = "rank 0 is at 127.0.0.1 and rank 2 at ::1 (comm.interfaces)";
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn an_interface_that_is_not_there_is_named_before_anything_starts() {
    let rank = Join {
        interfaces: vec!["lo".into(), "no-such-interface".into()],
        ..joining(Kind::Tcp, 1, 2, &listener(), PATIENT)
    };
    let error = join(rank).err().unwrap();
    assert!(matches!(error, Error::Option { option: "comm.interfaces", .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("this host has no interface \"no-such-interface\""), "{said}");
    assert!(said.contains("lo (127.0.0.1"), "{said}");
}
