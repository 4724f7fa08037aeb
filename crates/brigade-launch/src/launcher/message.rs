//! What the launcher's threads tell its main thread.

use std::{sync::mpsc::Receiver, time::Instant};

use signal_hook::consts::{SIGTSTP, SIGWINCH};

use super::{node_group::NodeEvent, process::RankEvent};

pub enum Message {
    /// About a rank of this node that was started after this many restarts.
    Rank { restart_count: u32, local_rank: usize, event: RankEvent },
    /// The launcher got this signal.
    Signal(i32),
    /// From the launchers of the other nodes.
    Node(NodeEvent),
}

/// Waits for a message while no rank runs: those about ranks are outdated. `None` at the deadline.
pub fn receive_between_restarts(messages: &Receiver<Message>, until: Instant) -> Option<Message> {
    loop {
        match messages.recv_timeout(until.saturating_duration_since(Instant::now())).ok()? {
            Message::Rank { .. } | Message::Signal(SIGWINCH) => {}
            Message::Signal(SIGTSTP) => drop(signal_hook::low_level::emulate_default_handler(SIGTSTP)),
            message => return Some(message),
        }
    }
}
