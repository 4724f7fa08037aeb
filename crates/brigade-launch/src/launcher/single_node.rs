//! The starts of a world on one node.

use std::{
    sync::mpsc::{Receiver, Sender},
    time::Instant,
};

use super::{
    LaunchConfig, ended_by,
    event::{Event, Message},
    host_name, next_between_rounds,
    outcome::{Outcome, signal_name},
    process::{RankZero, Start},
    report::decide,
    round::Round,
    start_ranks,
    terminal::Terminal,
};
use crate::{Result, interrupt::InterruptKind, listener};

pub fn run(
    launch: &LaunchConfig,
    sender: &Sender<Message>,
    messages: &Receiver<Message>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Outcome> {
    let host = host_name();
    let max_restarts = launch.max_restarts;
    let mut number = 0;
    loop {
        let (listener, endpoint) = listener::bind(launch.endpoint.as_ref(), 1)?;
        let zero = RankZero { listener, terminal: Terminal::open() };
        let start = Start { round: number, max_restarts, endpoint };
        let epoch = Instant::now();
        let (ranks, terminal) = start_ranks(launch, &start, Some(zero), sender, on_event)?;
        let (host, nodes) = (host.as_str(), None);
        let round = Round { launch, number, epoch, host, messages, nodes, on_event, ranks, terminal };
        let decision = decide(round.run(), &[], number);
        if !decision.may_restart || number >= max_restarts {
            return Ok(decision.outcome);
        }
        number += 1;
        let failure = Box::new(decision.outcome);
        on_event(Event::Restarting { number, of: max_restarts, failure });
        if let Some(Message::Signal(signal)) =
            next_between_rounds(messages, Instant::now() + launch.restart_delay)
        {
            return Ok(ended_by(signal_name(signal), InterruptKind::of(signal)));
        }
    }
}
