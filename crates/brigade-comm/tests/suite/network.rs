//! A rank that is cut off, for good or for a while: its host is gone, and no connection says so. It needs network
//! namespaces, which only root may make; without them these tests say so and pass.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::processes::{Rank, STEP_SECONDS, begun, spawn};
use crate::worlds::SOON;

/// Two network namespaces with a cable between them, which are gone when the test ends.
struct Cable {
    near: String,
    far: String,
}

impl Cable {
    /// A cable with the addresses `10.<number>.0.1` and `.2`.
    fn lay(number: u8) -> Option<Self> {
        let name = |end| format!("brigade-{}-{number}-{end}", std::process::id());
        let cable = Self { near: name("near"), far: name("far") };
        let Self { near, far } = &cable;
        let laid = ip(&["netns", "add", near])
            && ip(&["netns", "add", far])
            && ip(&["-n", near, "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", far])
            && cable.end(near, "near", &format!("10.{number}.0.1/24"))
            && cable.end(far, "far", &format!("10.{number}.0.2/24"));
        if !laid {
            println!("skipped: this machine allows no network namespaces");
        }
        laid.then_some(cable)
    }

    fn end(&self, namespace: &str, link: &str, address: &str) -> bool {
        ip(&["-n", namespace, "addr", "add", address, "dev", link])
            && ip(&["-n", namespace, "link", "set", link, "up"])
            && ip(&["-n", namespace, "link", "set", "lo", "up"])
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.near]);
        ip(&["netns", "del", &self.far]);
    }
}

/// The second cable of a host, with the addresses `10.<number>.1.1` and `.2`.
fn lay_second(cable: &Cable, number: u8) -> bool {
    let Cable { near, far } = cable;
    ip(&["-n", near, "link", "add", "near1", "type", "veth", "peer", "name", "far1", "netns", far])
        && cable.end(near, "near1", &format!("10.{number}.1.1/24"))
        && cable.end(far, "far1", &format!("10.{number}.1.2/24"))
}

fn ip(arguments: &[&str]) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Three ranks at work, the last one behind a cable; a host may be out of reach for `host` seconds.
fn ranks(cable: &Cable, number: u8, work: &str, host: u64) -> Vec<Rank> {
    let role = |rank| format!("{work} {rank} 3 10.{number}.0.1:29400 auto {STEP_SECONDS} {host}");
    let near = |rank| spawn(Some(&cable.near), &role(rank));
    begun(vec![near(0), near(1), spawn(Some(&cable.far), &role(2))])
}

/// After `cut`, the others name the rank behind the cable and it names one of them, long before the deadline of an operation.
fn a_rank_that_is_cut_off_is_named(number: u8, cut: impl Fn(&Cable) -> bool) {
    let Some(cable) = Cable::lay(number) else { return };
    let mut ranks = ranks(&cable, number, "reduce", 2);
    assert!(cut(&cable));
    let start = Instant::now();
    let mut said = Vec::new();
    for (rank, others) in [(0, &[2][..]), (1, &[2]), (2, &[0, 1])] {
        let line = ranks[rank].line();
        // Where one direction still works, the end of another rank may be heard of first, and of either first.
        let is_named = |other: &usize| {
            ["died", "has left"].iter().any(|word| line.contains(&format!("rank {other} {word}")))
        };
        assert!(others.iter().any(is_named), "rank {rank} says: {line}");
        said.push(line);
    }
    assert!(said.iter().any(|line| line.contains("its host has been unreachable for 2 s")), "{said:?}");
    assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
}

#[test]
fn a_cable_that_is_out_for_a_while_is_waited_for() {
    let Some(cable) = Cable::lay(76) else { return };
    let mut ranks = ranks(&cable, 76, "reduce-on", 30);
    let link = |state| assert!(ip(&["-n", &cable.far, "link", "set", "far", state]));
    link("down");
    // The outage itself, not a wait for something.
    std::thread::sleep(Duration::from_secs(3));
    link("up");
    let back = UNIX_EPOCH.elapsed().unwrap().as_millis();
    for (rank, process) in ranks.iter_mut().enumerate() {
        loop {
            let line = process.line();
            let at = line.strip_prefix("reduced at ").and_then(|at| at.parse::<u128>().ok());
            match at {
                Some(at) if at > back => break,
                Some(_) => {}
                None => panic!("rank {rank} says: {line}"),
            }
        }
    }
}

#[test]
fn a_cable_that_is_pulled() {
    a_rank_that_is_cut_off_is_named(77, |cable| ip(&["-n", &cable.far, "link", "set", "far", "down"]));
}

#[test]
fn a_host_that_can_only_hear() {
    a_rank_that_is_cut_off_is_named(78, |cable| {
        ip(&["-n", &cable.far, "route", "add", "blackhole", "10.78.0.1/32"])
    });
}

#[test]
fn a_host_that_can_only_talk() {
    a_rank_that_is_cut_off_is_named(79, |cable| {
        ip(&["-n", &cable.near, "route", "add", "blackhole", "10.79.0.2/32"])
    });
}

/// Two ranks that meet by the first cable, and have chosen the second for links.
fn by_the_second_cable(cable: &Cable, number: u8, far: &str) -> [Rank; 2] {
    let role =
        |rank, interface| format!("reduce {rank} 2 10.{number}.0.1:29400 auto {STEP_SECONDS} 4 {interface}");
    [spawn(Some(&cable.near), &role(0, "near1")), spawn(Some(&cable.far), &role(1, far))]
}

#[test]
fn links_go_by_the_chosen_cable() {
    let Some(cable) = Cable::lay(80) else { return };
    assert!(lay_second(&cable, 80));
    let _ranks = begun(by_the_second_cable(&cable, 80, "10.80.1.0/24").into());
    let sent = |link: &str| -> u64 {
        let counter = format!("/sys/class/net/{link}/statistics/tx_bytes");
        let read = Command::new("ip").args(["netns", "exec", &cable.near, "cat", &counter]).output().unwrap();
        String::from_utf8(read.stdout).unwrap().trim().parse().unwrap()
    };
    let (first, second) = (sent("near"), sent("near1"));
    assert!(second > 6_000_000 && first < 1_000_000, "{first} {second}");
}

#[test]
fn an_address_that_does_not_answer_is_named() {
    let Some(cable) = Cable::lay(81) else { return };
    assert!(lay_second(&cable, 81));
    // What comes by the second cable is heard and not answered.
    assert!(ip(&["-n", &cable.near, "route", "add", "blackhole", "10.81.1.2/32"]));
    let start = Instant::now();
    let mut ranks = by_the_second_cable(&cable, 81, "far1");
    let said = [ranks[0].line(), ranks[1].line()];
    for said in &said {
        assert!(said.contains("rank 1 could not connect to rank 0 within 5"), "{said}");
        assert!(said.contains(": 10.81.1.1:"), "{said}");
        assert!(said.contains(", from 10.81.1.2 (comm.interfaces): "), "{said}");
    }
    assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
}

#[test]
fn an_interface_without_a_carrier_is_named() {
    let Some(cable) = Cable::lay(82) else { return };
    assert!(lay_second(&cable, 82));
    assert!(ip(&["-n", &cable.near, "link", "set", "near1", "down"]));
    let trouble = |namespace: &str, link: &str| {
        let role = format!("join 1 2 10.82.0.1:29400 auto {STEP_SECONDS} 4 {link}");
        spawn(Some(namespace), &role).line()
    };
    let near = trouble(&cable.near, "near1");
    assert!(near.contains("comm.interfaces = [\"near1\"]: near1 is down"), "{near}");
    assert!(near.contains("near (10.82.0.1)"), "{near}");
    let far = trouble(&cable.far, "far1");
    assert!(far.contains("far1 has no carrier"), "{far}");
}
