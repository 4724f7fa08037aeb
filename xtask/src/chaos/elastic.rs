//! Elastic runs whose nodes are killed, stopped, told to leave and started again at random moments.
//!
//! A node is a command of its own on this machine, with one rank: on a host of its own, which can be cut off, where the machine allows network namespaces.
//! After some changes the run is left alone until it finishes: its weights and losses must be those of a run on one rank that nothing happened to.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::choices::Choices;
use super::process::{RunningCommand, kill, ranks, send};
use super::run::{KEEP, Reference, RunDir, TEXT, WEIGHTS, remove};
use crate::network;

/// Nodes of a run; it continues with one.
pub const NODES: usize = 4;
/// The most changes of one run.
const MAX_CHANGES: u64 = 4;
/// Steps of a run: enough for some changes.
const STEPS: u64 = 1500;
/// The longest pause before a change, in milliseconds.
const PAUSE: u64 = 3_000;
/// The longest time that a node is away, in milliseconds; node 0 waits for it for two seconds.
const AWAY: u64 = 4_000;
/// A node that is stopped for longer counts as lost, in seconds.
const HOST_TIMEOUT: u64 = 4;
/// The longest time from the last change to the end.
const LIMIT: Duration = Duration::from_secs(180);

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Its launcher is killed, its ranks with it, and started again later.
    Kill,
    /// One of its ranks is killed.
    KillRank,
    /// Launcher and ranks are stopped until the others take it for lost, and continued.
    Stop,
    /// Its host is cut off the network until the others take it for lost, and connected again.
    Cut,
    /// Its launcher gets SIGTERM, and is started again later.
    Leave,
}

/// The last one takes hosts of a network.
const CHANGES: [Change; 5] = [Change::Kill, Change::KillRank, Change::Stop, Change::Leave, Change::Cut];

/// Counts over all runs. `Display` gives a table.
#[derive(Default)]
pub struct Counts {
    changes: BTreeMap<(Change, bool), u32>,
    starts: usize,
    runs: u32,
}

impl Counts {
    fn changes(&self) -> u32 {
        self.changes.values().sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (change, name) in
            CHANGES.into_iter().zip(["killed", "rank killed", "stopped", "told to leave", "cut off"])
        {
            let count = |is_first| self.changes.get(&(change, is_first)).copied().unwrap_or(0);
            writeln!(f, "{name:<18}{:>4} times node 0, {:>4} times another", count(true), count(false))?;
        }
        writeln!(f, "changes           {}", self.changes())?;
        writeln!(f, "starts            {} of the ranks", self.starts)?;
        writeln!(f, "runs              {} finished, all with the same bytes", self.runs)
    }
}

/// Does one run after another until there were enough changes. With `on_network`, each node is on a host of its own.
pub fn run(brigade: &Path, folder: &Path, seed: u64, enough: u32, on_network: bool) -> Result<Counts> {
    let reference = Reference::of_line(brigade, folder, &format!("{} --nproc-per-node 1", settings(0)))?;
    let mut counts = Counts::default();
    while counts.changes() < enough {
        let number = counts.runs;
        let run = Run {
            brigade,
            folder,
            name: format!("elastic-{number}"),
            port: super::free_port()?,
            on_network,
            choices: Choices::new(seed, number),
        };
        let most = u64::from(enough - counts.changes()).min(MAX_CHANGES);
        let name = run.name.clone();
        run.complete(&reference, most, &mut counts).with_context(|| {
            format!("{name} of --seed {seed}; its folder is {}", folder.join(&name).display())
        })?;
        remove(&folder.join(&name))?;
        counts.runs += 1;
        eprintln!("{name} ended as it should; {} of {enough} changes", counts.changes());
    }
    Ok(counts)
}

/// Eight micro-batches a step, for one, two or four ranks: of three nodes that are there, two are used.
fn settings(keep: usize) -> String {
    format!(
        "--data {TEXT} --set data.tokenizer=bytes --set model.layers=2 --set model.width=32 --set model.heads=2 \
         --set model.sequence_length=32 --steps {STEPS} --micro-batch-size 1 --global-batch-size 8 \
         --set train.validate_every=0 --set train.validation_samples=4 --checkpoint-every 25 --keep {keep}"
    )
}

struct Run<'a> {
    brigade: &'a Path,
    folder: &'a Path,
    name: String,
    port: u16,
    on_network: bool,
    choices: Choices,
}

/// A node, while its launcher runs.
struct Node {
    command: RunningCommand,
    began: Instant,
    /// Whether it was killed or told to leave, and not started again since the run was over.
    is_gone: bool,
}

impl Run<'_> {
    fn complete(mut self, reference: &Reference, changes: u64, counts: &mut Counts) -> Result<()> {
        let mut nodes: Vec<Node> = (0..NODES).map(|node| self.start(node)).collect::<Result<_>>()?;
        for _ in 0..changes {
            self.pause(PAUSE);
            if self.is_over() {
                break;
            }
            let node = self.choices.below(NODES as u64) as usize;
            let possible = if self.on_network { &CHANGES[..] } else { &CHANGES[..CHANGES.len() - 1] };
            let change = self.choices.one(possible).unwrap_or(Change::Kill);
            self.change(change, node, &mut nodes)?;
            *counts.changes.entry((change, node == 0)).or_default() += 1;
        }
        let last = Instant::now();
        while nodes[0].command.ended()?.is_none() {
            ensure!(last.elapsed() < LIMIT, "it has not ended {} s after the last change", LIMIT.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
        for (number, node) in nodes.into_iter().enumerate() {
            let is_late = node.began.elapsed() < Duration::from_secs(5);
            let end = node.command.finish()?;
            // Who starts when the run is over finds nobody.
            let is_well =
                node.is_gone || end.status.success() || number > 0 && is_late && end.status.code() == Some(1);
            ensure!(is_well, "node {number} ended with {}:\n{}", end.status, end.text);
        }
        let history = std::fs::read_to_string(self.dir().file("history.jsonl")).unwrap_or_default();
        counts.starts += history.matches("\"started\"").count();
        reference.compare(&self.dir())
    }

    fn dir(&self) -> RunDir {
        RunDir(self.folder.join(&self.name))
    }

    fn is_over(&self) -> bool {
        self.dir().file(WEIGHTS).exists()
    }

    fn pause(&mut self, most: u64) {
        std::thread::sleep(Duration::from_millis(self.choices.below(most)));
    }

    fn start(&self, node: usize) -> Result<Node> {
        let Self { name, port, .. } = self;
        let (command, address) = match self.on_network {
            true => {
                let mut command = network::on_host(node as u8);
                command.arg(self.brigade);
                (command, network::address_of(0))
            }
            false => (Command::new(self.brigade), "127.0.0.1".to_owned()),
        };
        let line = format!(
            "train {} --nnodes 1:{NODES} --nproc-per-node 1 --node-rank {node} --rdzv-endpoint {address}:{port} \
             --last-call 2 --resize-interval 0.5 --host-timeout {HOST_TIMEOUT} --max-restarts 1000 --resume auto \
             --set comm.init_timeout_seconds=30 --out {name} --log-dir {name}-logs/{node}",
            settings(KEEP)
        );
        let token = [("BRIGADE_TOKEN", "a-secret-of-all-nodes".to_owned())];
        let host = [("BRIGADE_HOST_ID", format!("host-{node}"))];
        let command = RunningCommand::start_with(command, self.folder, &line, token.into_iter().chain(host))?;
        Ok(Node { command, began: Instant::now(), is_gone: false })
    }

    fn change(&mut self, change: Change, node: usize, nodes: &mut [Node]) -> Result<()> {
        let pid = nodes[node].command.pid();
        match change {
            Change::Kill => {
                kill(pid);
                self.come_back(node, nodes)
            }
            Change::Leave => {
                send(pid, Signal::TERM);
                let begin = Instant::now();
                while nodes[node].command.ended()?.is_none() {
                    ensure!(begin.elapsed() < LIMIT, "node {node} does not end after SIGTERM");
                    std::thread::sleep(Duration::from_millis(20));
                }
                if node == 0 {
                    // The whole run ends, and is started again.
                    for (number, other) in nodes.iter_mut().enumerate().skip(1) {
                        while other.command.ended()?.is_none() {
                            ensure!(begin.elapsed() < LIMIT, "node {number} does not end with node 0");
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        *other = self.start(number)?;
                    }
                }
                self.come_back(node, nodes)
            }
            Change::KillRank => {
                if let Some(rank) = self.choices.one(&ranks(pid)) {
                    kill(rank);
                }
                Ok(())
            }
            Change::Stop => {
                // A rank may end meanwhile.
                let signal = |pid, kind| {
                    let _ = send(pid, kind);
                };
                let all: Vec<u32> = ranks(pid).into_iter().chain([pid]).collect();
                all.iter().for_each(|pid| signal(*pid, Signal::STOP));
                std::thread::sleep(Duration::from_secs(HOST_TIMEOUT + 1));
                all.iter().for_each(|pid| signal(*pid, Signal::CONT));
                Ok(())
            }
            Change::Cut => {
                network::set_connected(node as u8, false)?;
                std::thread::sleep(Duration::from_secs(HOST_TIMEOUT + 1));
                network::set_connected(node as u8, true)
            }
        }
    }

    fn come_back(&mut self, node: usize, nodes: &mut [Node]) -> Result<()> {
        self.pause(AWAY);
        if node > 0 && self.is_over() {
            nodes[node].is_gone = true;
            return Ok(());
        }
        let ended = std::mem::replace(&mut nodes[node], self.start(node)?).command.finish()?;
        match ended.status.code() {
            // Killed, finished or preempted.
            None | Some(0 | 75) => Ok(()),
            Some(code) => bail!("node {node} ended with {code}:\n{}", ended.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_each_change() {
        let mut counts = Counts::default();
        *counts.changes.entry((Change::Stop, false)).or_default() += 3;
        *counts.changes.entry((Change::Kill, true)).or_default() += 1;
        let text = counts.to_string();
        assert!(text.contains("killed               1 times node 0,    0 times another"), "{text}");
        assert!(text.contains("stopped              0 times node 0,    3 times another"), "{text}");
        assert!(text.contains("changes           4"), "{text}");
    }
}
