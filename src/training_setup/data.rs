//! Datasets of whatever type, as a run reads them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_core::{Activation, Batch, with_seed};
use brigade_data::{Prefetcher, SourceShare};
use burn::tensor::Device;

use crate::dataset::Dataset;
use crate::thread_spans::ThreadSpans;

/// Which samples make up each of this rank's micro-batches at a position in the data.
pub(crate) type Order = Box<dyn Fn(u64) -> anyhow::Result<Vec<Vec<usize>>> + Send + Sync>;

/// Samples of any kind whose micro-batches have inputs `I` and targets `T`.
pub(crate) trait Data<I, T>: Send + Sync {
    /// Number of samples.
    fn samples(&self) -> usize;

    /// The parts that samples are drawn from, with their weights.
    fn shares(&self) -> Vec<SourceShare>;

    /// Targets of a sample.
    fn targets_per_sample(&self) -> usize;

    /// What targets are called.
    fn unit(&self) -> String;

    /// Reads samples into a micro-batch, which may draw from `seed`.
    fn read(&self, samples: Vec<usize>, device: &Device, seed: u64) -> anyhow::Result<Batch<I, T>>;

    /// Reads the micro-batches of one position after the other, from `position` on, ahead of their use.
    fn read_ahead(
        self: Arc<Self>,
        position: u64,
        order: Order,
        ahead: Ahead,
    ) -> anyhow::Result<Box<dyn Reader<I, T>>>;
}

/// How far ahead of its use data are read, and by how many threads; with 0 threads, reads happen on demand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead {
    pub readers: usize,
    pub steps: usize,
    /// How long a step may have to be waited for.
    pub deadline: Duration,
}

/// Reads this rank's micro-batches, position by position.
pub(crate) trait Reader<I, T> {
    /// The micro-batches of the next position, and how long they were waited for. `seed`: what each of them may draw from, by its
    /// number on this rank and how many there are.
    fn next(
        &mut self,
        device: &Device,
        seed: &dyn Fn(usize, usize) -> u64,
    ) -> anyhow::Result<(Vec<Batch<I, T>>, Duration)>;

    /// What its threads did.
    fn threads(&self) -> &ThreadSpans;
}

impl<D: Dataset> Data<D::Input, D::Target> for D {
    fn samples(&self) -> usize {
        self.len()
    }

    fn shares(&self) -> Vec<SourceShare> {
        Dataset::shares(self)
    }

    fn targets_per_sample(&self) -> usize {
        Dataset::targets_per_sample(self)
    }

    fn unit(&self) -> String {
        Dataset::unit(self).to_owned()
    }

    fn read(
        &self,
        samples: Vec<usize>,
        device: &Device,
        seed: u64,
    ) -> anyhow::Result<Batch<D::Input, D::Target>> {
        let items = items(self, samples)?;
        Ok(with_seed(device, seed, || self.batch(items, device)))
    }

    fn read_ahead(
        self: Arc<Self>,
        position: u64,
        order: Order,
        ahead: Ahead,
    ) -> anyhow::Result<Box<dyn Reader<D::Input, D::Target>>> {
        let data = self.clone();
        let threads = ThreadSpans::default();
        let log = threads.clone();
        let read = move |position: u64| -> anyhow::Result<Vec<Vec<D::Item>>> {
            let read = || order(position)?.into_iter().map(|samples| items(&*data, samples)).collect();
            log.during(format!("read {position}"), read)
        };
        let items = match ahead.readers {
            0 => Items::Read { position, read: Box::new(read) },
            readers => {
                let prefetcher = Prefetcher::new(position, ahead.steps, readers, read)?;
                Items::Ahead(prefetcher.with_deadline(ahead.deadline))
            }
        };
        Ok(Box::new(InOrder { items, data: self, threads }))
    }
}

/// The items of some samples.
fn items<D: Dataset>(data: &D, samples: Vec<usize>) -> anyhow::Result<Vec<D::Item>> {
    let item = |index| data.get(index).with_context(|| format!("sample {index}"));
    samples.into_iter().map(item).collect()
}

/// The items of the micro-batches of a position.
type Positions<D> = Vec<Vec<<D as Dataset>::Item>>;

/// Where the items of the next position come from.
enum Items<D: Dataset> {
    /// Threads that have read them already.
    Ahead(Prefetcher<Positions<D>>),
    /// This thread.
    Read { position: u64, read: Box<dyn Fn(u64) -> anyhow::Result<Positions<D>>> },
}

struct InOrder<D: Dataset> {
    items: Items<D>,
    data: Arc<D>,
    threads: ThreadSpans,
}

impl<D: Dataset> Items<D> {
    /// Those of the next position, and how long they were waited for.
    fn next(&mut self) -> anyhow::Result<(Positions<D>, Duration)> {
        match self {
            Self::Ahead(items) => items.next().map_err(|error| match error {
                brigade_data::Error::PrefetchTimeout { .. } => {
                    anyhow::anyhow!("reading data: {error} (comm.train_timeout_seconds)")
                }
                error => error.into(),
            }),
            Self::Read { position, read } => {
                let begin = Instant::now();
                let items = read(*position)?;
                *position += 1;
                Ok((items, begin.elapsed()))
            }
        }
    }
}

impl<D: Dataset> Reader<D::Input, D::Target> for InOrder<D> {
    fn next(
        &mut self,
        device: &Device,
        seed: &dyn Fn(usize, usize) -> u64,
    ) -> anyhow::Result<(Vec<Batch<D::Input, D::Target>>, Duration)> {
        let (items, waited) = self.items.next().context("reading data")?;
        let count = items.len();
        let batch = |(k, items)| with_seed(device, seed(k, count), || self.data.batch(items, device));
        Ok((items.into_iter().enumerate().map(batch).collect(), waited))
    }

    fn threads(&self) -> &ThreadSpans {
        &self.threads
    }
}

/// Reads a micro-batch a second time, and compares.
///
/// # Errors
/// If its samples cannot be read, or are others the second time.
pub(crate) fn check_read_again<I: Activation + Clone, T>(
    data: &dyn Data<I, T>,
    batch: &Batch<I, T>,
    samples: Vec<usize>,
    device: &Device,
    seed: u64,
) -> anyhow::Result<()> {
    let shown = first_of(&samples);
    if batch.has_input_of(&data.read(samples, device, seed)?)? {
        return Ok(());
    }
    anyhow::bail!(
        "the dataset gives another micro-batch when its samples are read again ({shown}): what `Dataset::get` gives must follow from the \
        sample's index alone, and what `Dataset::batch` gives from that, because another mesh reads a sample on another rank, and a resumed run reads it again. To \
        augment samples, draw from Burn's generator on the given device in `batch`, or in `get` from a generator seeded by the index"
    );
}

/// The first few of some samples.
fn first_of(samples: &[usize]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = samples.iter().take(SHOWN).map(usize::to_string).collect();
    let more = if samples.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
