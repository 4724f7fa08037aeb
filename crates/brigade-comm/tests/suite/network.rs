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
