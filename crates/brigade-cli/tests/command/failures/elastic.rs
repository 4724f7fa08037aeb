//! Runs whose nodes leave, come back and come later.

use rustix::process::Signal;

use crate::place::{Place, Running};
use crate::processes::{TOKEN, port, send};
use crate::runs::{newest, same_end};

/// Eight micro-batches a step, for one, two or four ranks.
const RUN: &str =
    "--set train.validate_every=0 --micro-batch-size 1 --global-batch-size 8 --checkpoint-every 10";

struct Nodes<'a> {
    place: &'a Place,
    port: u16,
    line: &'a str,
}

impl<'a> Nodes<'a> {
    fn new(place: &'a Place, line: &'a str) -> Self {
        Self { place, port: port(), line }
    }

    fn start(&self, node: usize, extra: &str) -> Running {
        let Self { port, line, .. } = self;
        let line = format!(
            "{RUN} {line} --node-rank {node} --rdzv-endpoint 127.0.0.1:{port} --last-call 2 --resize-interval 0.5 \
             --host-timeout 10 --out a --log-dir n{node} {extra}"
        );
        let mut command = self.place.train(&line);
        command.env("BRIGADE_TOKEN", TOKEN).env("BRIGADE_HOST_ID", format!("host-{node}"));
        self.place.start(&mut command)
    }

    /// Waits until the run has `ranks` ranks, has started them `restarts` times again, and has saved after that.
    fn until(&self, running: &mut Running, ranks: u64, restarts: u64) {
        let what = format!("{ranks} ranks save, after {restarts} restarts");
        running.until(&what, |_| {
            let started = self.history("started").pop()?;
            let resumed = started["resumed_at"].as_u64().unwrap_or(0);
            let is_it = started["ranks"] == ranks && started["restart"].as_u64() >= Some(restarts);
            (is_it && newest(self.place, "a") > Some(resumed)).then_some(())
        });
    }

    /// The events of this kind in the run's history.
    fn history(&self, event: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.place.path("a/history.jsonl")).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        events.filter(|found| found["event"] == event).collect()
    }
}

fn end_well(running: impl IntoIterator<Item = Running>) -> Vec<String> {
    let done = running.into_iter().map(Running::wait).map(|done| {
        assert_eq!(done.code, Some(0), "{}", done.err);
        done.err
    });
    done.collect()
}

/// A launcher is killed with its ranks, and two of the three nodes that are left go on, as three do not divide the batch; it is started
/// again, and all four run.
#[test]
fn a_run_goes_on_without_a_node_and_takes_it_in_again_with_the_same_bits() {
    let place = Place::new();
    let nodes = Nodes::new(&place, "--steps 400 --nnodes 2:4 --nproc-per-node 1 --dp 4 --zero 1");
    let mut first = nodes.start(0, "");
    let mut others: Vec<Running> = (1..4).map(|node| nodes.start(node, "")).collect();
    nodes.until(&mut first, 4, 0);
    assert!(send(others.remove(0).pid(), Signal::KILL));
    nodes.until(&mut first, 2, 1);
    others.push(nodes.start(1, ""));
    nodes.until(&mut first, 4, 2);
    let status = place.succeed(&mut place.brigade("status a")).out;
    for part in ["running\n", "on 4 ranks, mesh ", "node 1 (", " left: ", " joined, "] {
        assert!(status.contains(part), "{part}: {status}");
    }
    others.insert(0, first);
    let said = end_well(others);
    for part in ["3 nodes are there, of which 2 are used: ", "to add node 1 ("] {
        assert!(said[0].contains(part), "{part}: {}", said[0]);
    }
    let meshes: Vec<_> = nodes.history("started").iter().map(|start| start["mesh"].clone()).collect();
    assert!(meshes.len() >= 3 && meshes[0] != meshes[1] && meshes[0] == meshes[2], "{meshes:?}");
    place.succeed(&mut place.train(&format!("{RUN} --steps 400 --nproc-per-node 1 --out whole")));
    same_end(&place, "a", "whole");
}

/// Two replicas of three data-parallel ranks cannot be.
#[test]
fn a_mesh_that_does_not_fit_uses_the_nearest_number_of_nodes() {
    let place = Place::new();
    let line = "--steps 30 --nnodes 1:3 --nproc-per-node 2 --pp 2 --zero 1 --replicate 2 --dp 2";
    let nodes = Nodes::new(&place, line);
    let running: Vec<Running> = (0..3).map(|node| nodes.start(node, "")).collect();
    let said = end_well(running);
    let unused = "3 nodes are there, of which 2 are used: mesh.replicate (--replicate) = 2";
    assert!(said[0].contains(unused), "{}", said[0]);
    let started = nodes.history("started");
    assert!(started.len() == 1 && started[0]["ranks"] == 4, "{started:?}");
    place.succeed(&mut place.train(&format!("{RUN} --steps 30 --nproc-per-node 1 --out whole")));
    same_end(&place, "a", "whole");
    let none = Nodes::new(&place, "--nnodes 1:3 --nproc-per-node 2 --zero 1 --replicate 5");
    let none = none.start(0, "--overwrite").wait();
    assert_eq!(none.code, Some(2), "{}", none.err);
    assert!(none.err.contains("no number of nodes that --nnodes 1:3 allows can be used: "), "{}", none.err);
}

#[test]
fn a_node_with_another_configuration_does_not_disturb_an_elastic_run() {
    let place = Place::new();
    let nodes = Nodes::new(&place, "--steps 300 --nnodes 1:3 --nproc-per-node 1");
    let (mut first, second) = (nodes.start(0, ""), nodes.start(1, ""));
    nodes.until(&mut first, 2, 0);
    let other = nodes.start(2, "--seed 77").wait();
    assert_eq!(other.code, Some(2), "{}", other.err);
    assert!(
        other.err.contains("its configuration differs from node 0's: `seed = 77` there"),
        "{}",
        other.err
    );
    end_well([first, second]);
    assert_eq!(nodes.history("started").len(), 1);
}

/// The planner is asked for each number of nodes.
#[test]
fn a_mesh_that_is_planned_is_planned_for_the_nodes_that_are_there() {
    let place = Place::new();
    let nodes =
        Nodes::new(&place, "--steps 400 --nnodes 1:2 --nproc-per-node 2 --mesh auto --max-restarts 2");
    let (mut first, second) = (nodes.start(0, ""), nodes.start(1, ""));
    nodes.until(&mut first, 4, 0);
    assert!(send(second.pid(), Signal::KILL));
    nodes.until(&mut first, 2, 1);
    end_well([first]);
    place.succeed(&mut place.train(&format!("{RUN} --steps 400 --nproc-per-node 1 --out whole")));
    same_end(&place, "a", "whole");
}
