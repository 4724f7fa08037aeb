//! Starts the ranks of this node.

use std::sync::mpsc::Sender;

use crate::{
    error::Result,
    launcher::{
        config::LaunchConfig,
        message::Message,
        outcome::event::Event,
        process::{RankProcess, RankZero, StartInfo, Terminal},
    },
};

/// Starts the processes. The terminal that is returned is the launcher's side of rank 0's; what
/// rank 0 inherits is closed here, so that its end can be seen.
pub fn start_ranks(
    launch: &LaunchConfig,
    start: &StartInfo,
    zero: Option<RankZero>,
    sender: &Sender<Message>,
    on_event: &mut dyn FnMut(Event),
) -> Result<(Vec<RankProcess>, Option<Terminal>)> {
    let mut ranks = Vec::with_capacity(launch.nproc);
    for local_rank in 0..launch.nproc {
        let zero = zero.as_ref().filter(|_| local_rank == 0);
        let (restart_count, sender) = (start.restart_count, sender.clone());
        // The launcher may have stopped listening.
        let send = move |event| drop(sender.send(Message::Rank { restart_count, local_rank, event }));
        let process = RankProcess::start(launch, local_rank, start, zero, send)?;
        on_event(Event::Started { rank: process.rank, pid: process.pid });
        ranks.push(process);
    }
    Ok((ranks, zero.and_then(|zero| zero.terminal).map(|(terminal, _)| terminal)))
}
