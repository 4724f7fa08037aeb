//! Sizes of micro-batches that are tried on all nodes at once.

use std::ffi::OsString;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use brigade_comm::{AuthToken, Timeouts};
use brigade_launch::{LauncherGroup, NodeInfo, interrupt};
use serde::{Deserialize, Serialize};

use super::super::ranks::Ranks;
use super::MicroBatch;
use super::command_line::without;
use super::trial::{OUT_OF_MEMORY, Progress, RunningTrial, Trial, TrialEnd, TrialOutcome, outcome};
use crate::settings::Settings;
use crate::world::timeouts;

/// How often the nodes tell each other how far a trial is.
const TICK: Duration = Duration::from_millis(100);

/// How long the other nodes' ranks may take to end after those of one have.
const PATIENCE: Duration = Duration::from_secs(15);

/// The most nodes of which a message tells what they say.
const MAX_NODES: usize = 3;

/// The option that asks for the choice.
const AUTO: &str = "--micro-batch-size auto";

/// Options that say where the nodes meet.
const OPTIONS: [&str; 5] = ["--nnodes", "--node-rank", "--rdzv-endpoint", "--master-addr", "--master-port"];

/// The launchers of all nodes. Node 0 chooses the sizes to try; the others do as it says.
pub struct Nodes<'a> {
    group: LauncherGroup,
    node: NodeInfo,
    args: Vec<OsString>,
    settings: &'a Settings,
    ranks: &'a Ranks,
}

/// What node 0 says to the others.
#[derive(Serialize, Deserialize)]
enum Instruction {
    /// A size to try, and where the nodes meet for it.
    Try { size: usize, endpoint: String },
    /// The choice.
    Chosen(MicroBatch),
}

/// How far a trial is on a node.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Trains,
    Trained,
    Ended,
}

impl<'a> Nodes<'a> {
    /// Meets the launchers of the other nodes. `args`: those of this program, with all else decided.
    ///
    /// # Errors
    /// If the number of nodes may change, a node does not come, or a signal arrives.
    pub fn join(
        node: &NodeInfo,
        token: impl FnOnce() -> brigade_launch::Result<AuthToken>,
        args: &[OsString],
        settings: &'a Settings,
        ranks: &'a Ranks,
    ) -> anyhow::Result<Self> {
        let NodeInfo { nnodes, min_nodes, .. } = *node;
        if min_nodes < nnodes {
            bail!(
                "--micro-batch-size auto tries sizes on a fixed number of nodes, and --nnodes is {min_nodes}:{nnodes}; give a size"
            );
        }
        let token = token()?;
        let Timeouts { init, host, .. } = timeouts(&settings.comm);
        let (sender, joined) = mpsc::channel();
        let (joins, nproc) = (node.clone(), ranks.per_node);
        std::thread::Builder::new()
            .name("join-launchers".into())
            .spawn(move || {
                drop(sender.send(LauncherGroup::join(&joins, AUTO, nproc, token, init, host)));
            })
            .context("cannot start a thread")?;
        let group = loop {
            match joined.recv_timeout(TICK) {
                Ok(group) => break group?,
                Err(RecvTimeoutError::Timeout) if !interrupt::is_signal_pending() => {}
                Err(_) => {
                    interrupt::exit_on_signal()?;
                    bail!("a signal ended the trials of --micro-batch-size auto");
                }
            }
        };
        let args = without(args, &OPTIONS, &[]);
        Ok(Self { group, node: node.clone(), args, settings, ranks })
    }

    /// Chooses on node 0 with `search`, which tries sizes on all nodes, and returns the choice on all of them.
    ///
    /// # Errors
    /// If a node cannot take part.
    pub fn choose(
        self,
        search: impl FnOnce(&mut dyn FnMut(usize) -> anyhow::Result<Trial>) -> anyhow::Result<MicroBatch>,
    ) -> anyhow::Result<MicroBatch> {
        let chosen = match self.node.node_rank {
            0 => self.lead(search),
            _ => self.follow(),
        };
        match chosen {
            Ok(chosen) => self.group.leave().map(|()| chosen).map_err(Into::into),
            Err(error) => {
                self.group.abort(&format!("{error:#}"));
                Err(error)
            }
        }
    }

    fn lead(
        &self,
        search: impl FnOnce(&mut dyn FnMut(usize) -> anyhow::Result<Trial>) -> anyhow::Result<MicroBatch>,
    ) -> anyhow::Result<MicroBatch> {
        let mut attempt = |size| {
            let endpoint = self.group.free_endpoint()?.to_string();
            self.group.all_gather(&Some(Instruction::Try { size, endpoint: endpoint.clone() }))?;
            let trial = self.run_trial(size, &endpoint)?;
            trial.context("a trial of --micro-batch-size auto has no result")
        };
        let chosen = search(&mut attempt)?;
        self.group.all_gather(&Some(Instruction::Chosen(chosen.clone())))?;
        Ok(chosen)
    }

    fn follow(&self) -> anyhow::Result<MicroBatch> {
        loop {
            match self.group.all_gather::<Option<Instruction>>(&None)?.swap_remove(0) {
                Some(Instruction::Try { size, endpoint }) => drop(self.run_trial(size, &endpoint)?),
                Some(Instruction::Chosen(chosen)) => return Ok(chosen),
                None => bail!("node 0 says nothing about the size of micro-batches"),
            }
        }
    }

    /// Trains with this size on all nodes, whose ranks meet there; what came of it, on node 0.
    fn run_trial(&self, size: usize, endpoint: &str) -> anyhow::Result<Option<Trial>> {
        let mut args = self.args.clone();
        let (nnodes, node) = (self.node.nnodes.to_string(), self.node.node_rank.to_string());
        let there = [("--nnodes", &*nnodes), ("--node-rank", &*node), ("--rdzv-endpoint", endpoint)];
        args.extend(there.into_iter().flat_map(|(option, value)| [option.into(), value.into()]));
        let mut running = RunningTrial::start(&args, size, self.settings, self.ranks)?;
        let (mut record, mut ended_since) = (None, None);
        loop {
            let state = match running.progress()? {
                Progress::Trains => State::Trains,
                Progress::Trained(found) => {
                    record = Some(found);
                    State::Trained
                }
                Progress::Ended => State::Ended,
            };
            let states = self.group.all_gather(&state)?;
            let ended = states.iter().filter(|state| **state == State::Ended).count();
            if ended > 0 {
                ended_since = ended_since.or(Some(Instant::now()));
            }
            // Where ranks of one node fail, those of the others end by themselves, and say why.
            let is_over = ended_since.is_some_and(|since: Instant| since.elapsed() >= PATIENCE);
            if states.contains(&State::Trained) || ended == states.len() || is_over {
                break;
            }
            std::thread::sleep(TICK);
        }
        let end = running.end(ended_since.is_some())?;
        let ends: Vec<TrialEnd> = self.group.all_gather(&end)?;
        if self.node.node_rank != 0 {
            return Ok(None);
        }
        let available = ends.iter().filter_map(|end| end.available).min();
        let outcome = match record {
            Some(record) => outcome(&record, available),
            None => TrialOutcome::Failed(root_cause(&ends)),
        };
        Ok(Some(Trial { size, outcome }))
    }
}

/// Why a trial failed: exhausted memory, or else what the first nodes say, once each.
fn root_cause(ends: &[TrialEnd]) -> String {
    let failures = || ends.iter().enumerate().filter_map(|(node, end)| Some((node, end.failure.as_ref()?)));
    let mut said: Vec<(usize, &String)> =
        failures().filter(|(_, said)| said.contains(OUT_OF_MEMORY)).take(1).collect();
    if said.is_empty() {
        for failure in failures() {
            if said.len() < MAX_NODES && said.iter().all(|(_, other)| *other != failure.1) {
                said.push(failure);
            }
        }
    }
    said.into_iter().map(|(node, said)| format!("node {node}: {said}")).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_memory_is_the_root_cause_on_whichever_node() {
        let end = |failure: Option<&str>| TrialEnd { available: None, failure: failure.map(str::to_owned) };
        let lost = Some("a peer is gone");
        let exhausted = Some("rank 2 ran out of memory: 8 GiB");
        let cause = |failures: [Option<&str>; 3]| root_cause(&failures.map(end));
        assert_eq!(cause([lost, exhausted, None]), "node 1: rank 2 ran out of memory: 8 GiB");
        assert_eq!(cause([None, lost, lost]), "node 1: a peer is gone");
        let other = Some("on rank 1 `seed = 7`");
        assert_eq!(cause([lost, other, lost]), "node 0: a peer is gone; node 1: on rank 1 `seed = 7`");
    }
}
