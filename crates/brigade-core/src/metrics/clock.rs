//! Where a step's time went.

use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;
use burn::tensor::Device;

use crate::error::{Error, Result};

use super::span::{Activity, Span};

/// What a rank waits for: a sum of gradients, parameters, a few numbers, what a neighbouring stage sends, other workers, or servers and
/// what they wait for.
pub const WAITS: [&str; 7] =
    ["all_reduce", "reduce_scatter", "all_gather", "all_gather_scalars", "pipeline", "outer_step", "server"];

/// Time that one rank spent computing and waiting in a step.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// In forward passes, without the waits.
    pub forward: Duration,
    /// In backward passes, recomputed forward passes, and accumulating gradients, without the waits.
    pub backward: Duration,
    /// In the optimizer, the norm, and binding new parameters to the blocks, without the waits.
    pub optimizer: Duration,
    /// Waiting, by what for: one of [`WAITS`].
    pub waits: SortedMap<&'static str, Duration>,
    /// What happened when, where the engine [records](crate::UntypedEngine::record_spans) it.
    pub spans: Option<Vec<Span>>,
}

impl Clock {
    pub(crate) fn waiting<R>(&mut self, what: &'static str, wait: impl FnOnce() -> R) -> R {
        self.waiting_for(what, None, wait)
    }

    /// Waits for what comes `from` a rank of the pipeline.
    pub(crate) fn waiting_for<R>(
        &mut self,
        what: &'static str,
        from: Option<usize>,
        wait: impl FnOnce() -> R,
    ) -> R {
        let start = Instant::now();
        let result = wait();
        self.waited(what, from, start, start.elapsed());
        result
    }

    pub(crate) fn waited(
        &mut self,
        what: &'static str,
        from: Option<usize>,
        start: Instant,
        duration: Duration,
    ) {
        *self.waits.entry(what).or_default() += duration;
        if let Some(spans) = &mut self.spans {
            spans.push(Span { what: Activity::Wait { what, from }, start, end: start + duration });
        }
    }

    /// The time, where spans are recorded.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.spans.as_ref().map(|_| Instant::now())
    }

    /// Where spans are recorded, waits for a device that works beside the host, so that they are the device's times and not those of giving it work.
    pub(crate) fn wait_for_device(&self, device: &Device) -> Result<()> {
        match self.spans {
            None => Ok(()),
            Some(_) => device.sync().map_err(|error| Error::Device(error.to_string())),
        }
    }

    /// Records what has gone on since `start`.
    pub(crate) fn record(&mut self, what: Activity, start: Option<Instant>) {
        if let (Some(spans), Some(start)) = (&mut self.spans, start) {
            spans.push(Span { what, start, end: Instant::now() });
        }
    }

    /// All waits together.
    pub fn comm_wait(&self) -> Duration {
        self.waits.values().sum()
    }
}
