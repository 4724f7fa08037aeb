//! The starts and restarts of a world on one node.

use std::{
    sync::mpsc::{Receiver, Sender},
    time::Instant,
};

use super::{
    config::LaunchConfig,
    listener,
    local_ranks::{LocalRanks, start_ranks},
    message::{Message, receive_between_restarts},
    outcome::{
        Outcome,
        decision::{Decision, decide},
        event::Event,
        rank_exit::signal_name,
    },
    process::{RankZero, StartInfo, Terminal},
};
use crate::{error::Result, interrupt::InterruptKind};

pub fn run(
    launch: &LaunchConfig,
    host: &str,
    sender: &Sender<Message>,
    messages: &Receiver<Message>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Outcome> {
    let max_restarts = launch.max_restarts;
    let mut restart_count = 0;
    loop {
        let (listener, endpoint) = listener::bind(launch.endpoint.as_ref(), 1)?;
        let zero = RankZero { listener, terminal: Terminal::open() };
        let start = StartInfo { restart_count, max_restarts, endpoint };
        let epoch = Instant::now();
        let (ranks, terminal) = start_ranks(launch, &start, Some(zero), sender, on_event)?;
        let node_group = None;
        let group = LocalRanks {
            launch,
            restart_count,
            epoch,
            host,
            numbers: &[0],
            waiting_nodes: &|| None,
            messages,
            node_group,
            on_event,
            ranks,
            terminal,
        };
        let Decision { outcome, may_restart, .. } = decide(group.run().reports, restart_count);
        if !may_restart || restart_count >= max_restarts {
            return Ok(outcome);
        }
        restart_count += 1;
        let failure = Box::new(outcome);
        on_event(Event::Restarting { number: restart_count, of: max_restarts, failure });
        if let Some(Message::Signal(signal)) =
            receive_between_restarts(messages, Instant::now() + launch.restart_delay)
        {
            return Ok(Outcome::without_ranks(signal_name(signal), InterruptKind::of(signal)));
        }
    }
}
