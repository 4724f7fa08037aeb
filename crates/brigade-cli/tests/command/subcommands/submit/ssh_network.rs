//! Jobs over SSH on hosts of a network: namespaces of this machine, where it permits them.

use std::process::{Command, Output, id};

use super::{brigade, program};
use crate::place::Place;

/// Two hosts on a bridge, which is in a namespace of its own; all are removed with this value.
struct Hosts;

/// 0: the bridge, 1 and 2: the hosts.
fn name(host: usize) -> String {
    format!("brs{}-{host}", id())
}

fn address(host: usize) -> String {
    format!("10.78.0.{host}")
}

fn ip(line: &str) -> Option<Output> {
    let output = Command::new("ip").args(line.split(' ')).output().ok()?;
    output.status.success().then_some(output)
}

impl Hosts {
    /// None where namespaces are not permitted.
    fn new() -> Option<Self> {
        let bridge = name(0);
        ip(&format!("netns add {bridge}"))?;
        let hosts = Self;
        ip(&format!("-n {bridge} link add br0 type bridge"))?;
        ip(&format!("-n {bridge} link set br0 up"))?;
        for host in [1, 2] {
            let other = name(host);
            for line in [
                format!("netns add {other}"),
                format!("-n {other} link set lo up"),
                format!("-n {bridge} link add v{host} type veth peer name e0 netns {other}"),
                format!("-n {bridge} link set v{host} master br0 up"),
                format!("-n {other} addr add {}/24 dev e0", address(host)),
                format!("-n {other} link set e0 up"),
            ] {
                ip(&line)?;
            }
        }
        Some(hosts)
    }

    /// Bytes that a host has sent.
    fn sent(&self, host: usize) -> usize {
        let file = format!("/sys/class/net/v{host}/statistics/rx_bytes");
        let output = ip(&format!("netns exec {} cat {file}", name(0))).unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in 0..3 {
            let _ = ip(&format!("netns del {}", name(host)));
        }
    }
}

/// Only the program that connects them is a script: the hosts reach each other by nothing but the network.
#[test]
fn hosts_of_a_network_train_the_weights_of_one_process() {
    let Some(hosts) = Hosts::new() else {
        eprintln!("network namespaces are not permitted here, so nothing was tested");
        return;
    };
    let place = Place::new();
    place.succeed(&mut place.train("--out one --nproc-per-node 1"));
    program(&place, "ssh", "export BRIGADE_HOST_ID=\"$7\"; exec ip netns exec \"$7\" sh -c \"$8\"");
    let line = format!(
        "submit --to ssh --hosts {},{} --address {} --nodes 2 --gpus 0 --program {} -- train --config tiny.toml --data text --out two --nproc-per-node 1",
        name(1),
        name(2),
        address(1),
        env!("CARGO_BIN_EXE_brigade")
    );
    let mut command = brigade(&place, &line);
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", place.path("bin").display()));
    place.succeed(&mut command);
    let weights = place.read("two/model.safetensors");
    assert!(weights == place.read("one/model.safetensors"), "other weights");
    let history = place.text("two/history.jsonl");
    assert!(history.contains("\"ranks\":2"), "{history}");
    for host in [1, 2] {
        assert!(hosts.sent(host) > weights.len(), "host {host} sent {} bytes", hosts.sent(host));
    }
}
