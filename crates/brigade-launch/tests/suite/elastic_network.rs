//! An elastic world whose nodes are hosts of a network: namespaces of this machine, where it permits them.

use std::process::{Command, id};

use crate::elastic::World;

/// Three hosts on a bridge, which are removed with this value.
struct Hosts;

fn name(host: usize) -> String {
    format!("brg{}-{host}", id())
}

fn ip(line: &str) -> bool {
    let output = Command::new("ip").args(line.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

impl Hosts {
    /// None where namespaces are not permitted.
    fn new() -> Option<Self> {
        let bridge = name(0);
        if !ip(&format!("netns add {bridge}")) {
            return None;
        }
        let hosts = Self;
        let made = |lines: &[String]| lines.iter().all(|line| ip(line));
        let first = [
            "link set lo up",
            "link add br0 type bridge",
            "addr add 10.77.0.1/24 dev br0",
            "link set br0 up",
        ];
        if !made(&first.map(|line| format!("-n {bridge} {line}"))) {
            return None;
        }
        for host in [1, 2] {
            let other = name(host);
            let lines = [
                format!("netns add {other}"),
                format!("-n {other} link set lo up"),
                format!("-n {bridge} link add v{host} type veth peer name e0 netns {other}"),
                format!("-n {bridge} link set v{host} master br0 up"),
                format!("-n {other} addr add 10.77.0.{}/24 dev e0", host + 1),
                format!("-n {other} link set e0 up"),
            ];
            if !made(&lines) {
                return None;
            }
        }
        Some(hosts)
    }

    /// Cuts a host off, or joins it again.
    fn set(&self, host: usize, state: &str) {
        assert!(ip(&format!("-n {} link set v{host} {state}", name(0))));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..3 {
            let _ = ip(&format!("netns del {}", name(host)));
        }
    }
}

/// The same command on a host.
fn on_host(host: usize, command: &Command) -> Command {
    let mut there = Command::new("ip");
    there.args(["netns", "exec", &name(host)]).arg(command.get_program()).args(command.get_args());
    there.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    there.env("TEST_ADDRESS", "10.77.0.1").env("BRIGADE_HOST_ID", format!("host-{host}"));
    there
}

#[test]
fn a_node_that_is_cut_off_is_left_behind_and_comes_back_with_its_network() {
    let Some(hosts) = Hosts::new() else {
        eprintln!("network namespaces are not permitted here, so nothing was tested");
        return;
    };
    let world = World::new("1:3");
    let start = |node: usize| {
        let mut command = on_host(node, world.node(node).env("TEST_HOST", "4"));
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let children = [0, 1, 2].map(start);
    world.until(0, &["3 0:0", "3 1:1", "3 2:2"]);
    hosts.set(1, "down");
    world.until(1, &["2 0:0", "2 2:1"]);
    hosts.set(1, "up");
    world.until(2, &["3 0:0", "3 1:1", "3 2:2"]);
    let said = world.finish(children.into());
    assert!(said[0].contains("left: node Some(1)"), "{}", said[0]);
}
