//! Gradients of the global batch: forward and backward over a rank's micro-batches, sums over ranks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;

use crate::accumulate::PairwiseSum;
use crate::activation::{Activation, flatten};
use crate::collectives::{PendingTensor, PendingValues};
use crate::engine::{Batch, Engine};
use crate::error::{Error, Result};
use crate::model::restore_output;
use crate::norm::squared_norm;
use crate::tape::Tape;

/// What forward and backward over the global batch gave; equal on all ranks, to the bit.
pub(crate) struct Sums {
    /// Per block; none for a block without parameters.
    pub gradients: Vec<Option<Tensor<1>>>,
    pub grad_norm: f64,
    pub loss: f64,
    pub targets: f64,
}

impl Sums {
    /// Of a batch that holds nothing to learn from.
    pub(crate) fn nothing() -> Self {
        Self { gradients: Vec::new(), grad_norm: f64::NAN, loss: f64::NAN, targets: 0.0 }
    }
}

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// Forward and backward over this rank's micro-batches, and the sums over all ranks.
    pub(crate) fn sums(&mut self, batches: &[Batch<I, T>], clock: &mut Clock) -> Result<Sums> {
        if batches.is_empty() {
            return Err(Error::Setting {
                option: "micro-batches of a step",
                given: "0".into(),
                allowed: "each rank needs at least one".into(),
            });
        }
        // A step that failed half-way may have left gradients.
        self.states.iter_mut().for_each(|state| state.gradient = PairwiseSum::new());
        let valid: usize = batches.iter().map(|batch| batch.valid_targets).sum();
        let mut total = Total::Pending(self.collectives.exchange(vec![valid as f64]));
        let mut losses = PairwiseSum::new();
        let mut reducing = Vec::new();
        for (index, batch) in batches.iter().enumerate() {
            let started = Instant::now();
            let mut tape = Tape::forward(&self.chain.blocks, flatten(batch.input.clone()))?;
            let output = restore_output(&self.chain.blocks, tape.take_output())?;
            let loss = (self.loss)(output, batch.target.clone());
            clock.forward += started.elapsed();

            let targets = total.wait(&mut clock.comm_wait)?;
            if targets == 0.0 {
                return Err(Error::NoTargets { step: self.step });
            }
            let started = Instant::now();
            let loss = loss.div_scalar(targets);
            losses.push(loss.clone().inner(), |a, b| a + b);
            self.backward(tape, loss, (index + 1 == batches.len()).then_some(&mut reducing));
            clock.backward += started.elapsed();
        }
        let targets = total.wait(&mut clock.comm_wait)?;
        let local = match losses.finish(|a, b| a + b) {
            Some(loss) => loss.try_into_vec_as::<f32>().map_err(|e| Error::Device(e.to_string()))?[0],
            None => 0.0,
        };
        let shares = self.collectives.exchange(vec![f64::from(local)]);

        let mut gradients: Vec<Option<Tensor<1>>> = self.states.iter().map(|_| None).collect();
        let mut squares = vec![0.0; self.states.len()];
        for (index, pending) in reducing {
            let gradient = clock.waiting(|| pending.wait())?;
            let started = Instant::now();
            squares[index] = squared_norm(&gradient)?;
            gradients[index] = Some(gradient);
            clock.optimizer += started.elapsed();
        }
        let shares = clock.waiting(|| shares.wait())?;
        let mut loss = PairwiseSum::new();
        shares.iter().for_each(|share| loss.push(share[0] as f32, |a, b| a + b));
        let loss = f64::from(loss.finish(|a, b| a + b).unwrap_or(0.0));
        Ok(Sums { gradients, grad_norm: squares.iter().sum::<f64>().sqrt(), loss, targets })
    }

    /// One micro-batch backward, last block first. With `reducing`, the gradients are complete with
    /// this micro-batch: each block's sum over the ranks is started as soon as it is there.
    fn backward(
        &mut self,
        mut tape: Tape,
        loss: Tensor<1>,
        mut reducing: Option<&mut Vec<(usize, PendingTensor)>>,
    ) {
        let mut held: BTreeMap<(usize, String), Vec<Tensor<1>>> = BTreeMap::new();
        let mut root = Some(loss);
        for index in (0..self.states.len()).rev() {
            let block = &self.chain.blocks[index].block;
            let mut gradients = tape.backward(index, block.as_ref(), root.take());
            for tie in &self.ties {
                if tie.follower.0 == index
                    && let Some(gradient) = gradients.remove(&tie.follower.1)
                {
                    held.entry(tie.owner.clone()).or_default().push(gradient);
                }
            }
            for tie in &self.ties {
                if tie.owner.0 == index {
                    for gradient in held.remove(&tie.owner).into_iter().flatten() {
                        let sum = match gradients.remove(&tie.owner.1) {
                            Some(own) => own + gradient,
                            None => gradient,
                        };
                        gradients.insert(tie.owner.1.clone(), sum);
                    }
                }
            }
            let state = &mut self.states[index];
            if state.layout.is_empty() {
                continue;
            }
            let packed = state.layout.pack(gradients, &state.values.device());
            state.gradient.push(packed, |a, b| a + b);
            if let Some(reducing) = reducing.as_deref_mut()
                && let Some(sum) = state.gradient.finish(|a, b| a + b)
            {
                reducing.push((index, self.collectives.all_reduce(sum)));
            }
        }
    }
}

/// The global number of valid targets, asked for at the start of a step and needed at its first backward.
enum Total {
    Pending(PendingValues),
    Known(f64),
}

impl Total {
    fn wait(&mut self, waited: &mut Duration) -> Result<f64> {
        if let Self::Pending(_) = self {
            let started = Instant::now();
            if let Self::Pending(pending) = std::mem::replace(self, Self::Known(0.0)) {
                *self = Self::Known(pending.wait()?.iter().map(|values| values[0]).sum());
            }
            *waited += started.elapsed();
        }
        Ok(if let Self::Known(total) = self { *total } else { 0.0 })
    }
}

/// Where a step's time went.
#[derive(Default)]
pub(crate) struct Clock {
    pub forward: Duration,
    pub backward: Duration,
    pub optimizer: Duration,
    pub comm_wait: Duration,
}

impl Clock {
    fn waiting<R>(&mut self, wait: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = wait();
        self.comm_wait += started.elapsed();
        result
    }
}
