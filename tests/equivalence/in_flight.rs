//! What is between two stages stays bounded: neither training nor validation runs ahead of a slower stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{
    CollectiveKind, Collectives, DATA, Groups, Message, Pending, PendingTensor, PendingValues,
    ReshardAfterForward, Result, Traffic, Zero,
};
use burn::tensor::{Device, Tensor};

use crate::mesh::{on_threads, same_bits};
use crate::row::{Gpt, Row};

/// Collectives that count the messages which were sent, and of those the ones that were not waited for yet.
pub struct Counting {
    inner: Arc<dyn Collectives>,
    sent: Arc<AtomicUsize>,
    unsent: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Counting {
    pub fn new(inner: Arc<dyn Collectives>, sent: Arc<AtomicUsize>) -> Self {
        Self { inner, sent, unsent: Arc::default(), most: Arc::default() }
    }
}

impl Collectives for Counting {
    fn send(&self, message: Message, to: usize) -> Pending<()> {
        self.sent.fetch_add(1, SeqCst);
        self.most.fetch_max(self.unsent.fetch_add(1, SeqCst) + 1, SeqCst);
        let (sent, unsent) = (self.inner.send(message, to), self.unsent.clone());
        Pending::new(move || {
            unsent.fetch_sub(1, SeqCst);
            sent.wait()
        })
    }
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        self.inner.all_reduce(tensor)
    }
    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        self.inner.reduce_scatter(tensor)
    }
    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        self.inner.all_gather(tensor)
    }
    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        self.inner.broadcast(tensor, root)
    }
    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        self.inner.receive(from, device)
    }
    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues {
        self.inner.all_gather_scalars(values)
    }
    fn all_to_all_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        self.inner.all_to_all_bytes(bytes)
    }
    fn all_gather_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        self.inner.all_gather_bytes(bytes)
    }
    fn barrier(&self) -> Result<()> {
        self.inner.barrier()
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

#[test]
fn few_messages_are_on_their_way_at_once() {
    let row = Row { pp: 2, micro_batches: 32, ..Row::default() };
    let most = on_threads(row.pp, row.dp, |groups| {
        let (unsent, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let groups = groups.map(|_, inner| {
            Arc::new(Counting { inner, sent: Arc::default(), unsent: unsent.clone(), most: most.clone() })
        });
        let mut engine = row.engine(groups.clone()).unwrap();
        engine.step(row.batches(0, &groups), 1e-3).unwrap();
        let trained = most.swap(0, SeqCst);
        engine.evaluate(40, |index| Ok(row.batch(9, index))).unwrap();
        assert_eq!(unsent.load(SeqCst), 0, "all were waited for");
        (trained, most.load(SeqCst))
    });
    assert_eq!(most, [(2, 2), (2, 0)], "stage 0 sends activations, stage 1 gradients in training only");
}

/// `Counting` has no buffers that are emptied in their place: blocks whose parameters are freed after the forward are
/// run again.
#[test]
fn a_backend_that_cannot_empty_buffers_in_their_place() {
    for reshard_after_forward in
        [ReshardAfterForward::Default, ReshardAfterForward::Always, ReshardAfterForward::Never]
    {
        for (pp, tied, keep_gathered) in [(1, true, false), (2, true, false), (2, false, true)] {
            let zero = Zero { stage: 3, reshard_after_forward, keep_gathered, ..Zero::default() };
            let row = Row { pp, dp: 2, micro_batches: 2, tied, zero, ..Row::default() };
            let reference = row.reference().run(Groups::single_rank());
            let outcomes = on_threads(pp, 2, |groups| {
                row.run(groups.map(|_, inner| Arc::new(Counting::new(inner, Arc::default()))))
            });
            for outcome in outcomes {
                assert_eq!(outcome.validation, reference.validation);
                same_bits(&outcome.weights, &reference.weights, &format!("weights of {row:?}"));
            }
        }
    }
}

/// Data-parallel ranks of an evaluation have nothing to wait for but each other, now and then.
#[test]
fn ranks_of_a_long_evaluation_meet_on_the_way() {
    use PipelineScheduleKind::{Interleaved, OneFOneB, Zbv};
    const MICRO_BATCHES: usize = 43;
    let alone = Row::default();
    let mut engine = alone.engine(Groups::single_rank()).unwrap();
    let reference = engine.evaluate(MICRO_BATCHES, |index| Ok(alone.batch(9, index))).unwrap();
    let zero = Zero { stage: 3, ..Zero::default() };
    for row in [
        Row { dp: 2, ..Row::default() },
        Row { dp: 2, zero, ..Row::default() },
        Row { pp: 2, dp: 2, zero, ..Row::default() },
        Row { pp: 2, dp: 2, schedule: Interleaved, chunks: 2, ..Row::default() },
        Row { pp: 2, dp: 2, schedule: Zbv, chunks: 2, zero, ..Row::default() },
        Row { pp: 3, schedule: OneFOneB, ..Row::default() },
    ] {
        let met = on_threads(row.pp, row.dp, |groups| {
            let (data, mut engine) = (groups.over(&DATA), row.engine(groups.clone()).unwrap());
            let calls = |engine: &mut Gpt, count: usize| {
                let own: Vec<_> = (0..count).filter(|index| index % data.size() == data.rank()).collect();
                let of_world = || groups.world().traffic()[&CollectiveKind::AllGatherScalars].0;
                let before = of_world();
                let found = engine.evaluate(own.len(), |k| Ok(row.batch(9, own[k]))).unwrap();
                (of_world() - before, found)
            };
            let ((few, _), (many, found)) = (calls(&mut engine, 2), calls(&mut engine, MICRO_BATCHES));
            assert_eq!(found, reference, "{row:?}");
            many - few
        });
        let own = MICRO_BATCHES.div_ceil(row.dp);
        let period = if row.pp == 3 { 6 } else { 4 };
        assert_eq!(met, vec![((own - 1) / period) as u64; row.pp * row.dp], "{row:?}");
    }
}
