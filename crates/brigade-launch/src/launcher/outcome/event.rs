//! What a caller of `launch` learns while ranks run.

use std::{io, path::PathBuf, time::Duration};

use super::{Outcome, rank_exit::RankExit};

/// What happens during [`launch`](crate::launch), for a caller that wants to print it.
#[derive(Debug)]
pub enum Event {
    /// A rank's process was started.
    Started {
        /// The rank.
        rank: usize,
        /// Its process id, which is also its process group.
        pid: u32,
    },
    /// A rank of this node exited.
    Exited(RankExit),
    /// The launcher got a signal that ends the run, here or on another node. A second one kills the ranks at
    /// once.
    Interrupted {
        /// The signal's name.
        signal: String,
    },
    /// The run is preempted: the ranks are saving a checkpoint.
    Preempted {
        /// The signal's name, or the rank that exited with [`exit::PREEMPTED`](crate::exit::PREEMPTED).
        signal: String,
    },
    /// These ranks were still running at the end of their grace period, and were killed.
    Killed {
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// The run failed and will be started again: on all nodes, or once a node that was lost is back.
    Restarting {
        /// The number of the restart, from 1.
        number: u32,
        /// How many restarts are allowed.
        of: u32,
        /// How the run failed; `Display` gives the whole report.
        failure: Box<Outcome>,
    },
    /// The ranks save a checkpoint, to be started again with a node that came later.
    Resizing {
        /// Which node, where this launcher knows it.
        reason: String,
    },
    /// A node of an elastic world is lost, or was told to leave. The others wait for it for [`Elastic::last_call`](crate::Elastic).
    NodeLeft {
        /// Its `--node-rank`, where it is known.
        node: Option<usize>,
        /// Its host, where it is known.
        host: Option<String>,
        /// How that was noticed.
        reason: String,
    },
    /// The nodes of an elastic world have found together, and their ranks are about to start.
    Assembled {
        /// `--node-rank` and host of each.
        nodes: Vec<(usize, String)>,
        /// The same at the start before; empty at the first one that this launcher sees.
        before: Vec<(usize, String)>,
        /// Ranks on each node.
        nproc: usize,
        /// What the number of nodes adds to the arguments of the ranks.
        args: Vec<String>,
        /// Why some nodes that have come are not among them.
        unused: Option<String>,
    },
    /// The launchers of the other nodes have not all come yet.
    Waiting {
        /// How long this launcher waits for them at most, from the beginning.
        most: Duration,
    },
    /// On node 0: clocks of other nodes differ from its own.
    ClocksDiffer {
        /// Their hosts, and by how many seconds they are ahead; negative for those that are behind.
        ahead: Vec<(String, f64)>,
    },
    /// A rank's log cannot be written any more; the run continues.
    LogLost {
        /// The rank.
        rank: usize,
        /// Its log.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

impl Event {
    /// What it says of the nodes, or of their clocks, in words; none for any other event.
    pub fn about_nodes(&self) -> Option<String> {
        match self {
            Self::Resizing { reason } => {
                Some(format!("to add {reason}: the ranks save a checkpoint, and all restart"))
            }
            Self::NodeLeft { node, host, reason } => {
                let name = node.map_or("a node".to_owned(), |node| format!("node {node}"));
                let host = host.as_ref().map_or_else(String::new, |host| format!(" ({host})"));
                Some(format!("{name}{host} left: {reason}"))
            }
            Self::Assembled { nodes, before, nproc, unused, .. } => {
                let numbers = |nodes: &[(usize, String)]| {
                    nodes.iter().map(|(node, _)| node.to_string()).collect::<Vec<_>>().join(", ")
                };
                let s = |nodes: &[(usize, String)]| if nodes.len() == 1 { "" } else { "s" };
                let was = match before.is_empty() {
                    true => String::new(),
                    false => format!("; before on node{} {}", s(before), numbers(before)),
                };
                let why = unused.as_ref().map_or_else(String::new, |why| format!("; {why}"));
                let ranks = match nodes.len() * nproc {
                    1 => "1 rank".to_owned(),
                    many => format!("{many} ranks"),
                };
                Some(format!("{ranks} on node{} {}{was}{why}", s(nodes), numbers(nodes)))
            }
            Self::Waiting { most } => {
                let most = most.as_secs_f64();
                Some(format!(
                    "waiting for the launchers of the other nodes (at most {most} s, --rdzv-timeout)"
                ))
            }
            Self::ClocksDiffer { ahead } => {
                let named = |(host, seconds): &(String, f64)| {
                    let side = if *seconds > 0.0 { "ahead of" } else { "behind" };
                    format!("{host} is {:.0} s {side} node 0", seconds.abs())
                };
                let named: Vec<_> = ahead.iter().map(named).collect();
                Some(format!(
                    "the nodes' clocks differ: {}; times in logs cannot be compared, and object stores refuse requests if a clock is \
                     off by 15 minutes; synchronise them (NTP)",
                    named.join(", ")
                ))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_says_for_how_long() {
        let text = Event::Waiting { most: Duration::from_secs(86_400) }.about_nodes().unwrap();
        assert_eq!(text, "waiting for the launchers of the other nodes (at most 86400 s, --rdzv-timeout)");
    }

    #[test]
    fn clocks_that_differ_are_one_line() {
        let event = Event::ClocksDiffer { ahead: vec![("b".into(), 340.5), ("c".into(), -7200.0)] };
        let text = event.about_nodes().unwrap();
        let said = "the nodes' clocks differ: b is 340 s ahead of node 0, c is 7200 s behind node 0; times";
        assert!(text.starts_with(said) && !text.contains('\n'), "{text}");
    }
}
