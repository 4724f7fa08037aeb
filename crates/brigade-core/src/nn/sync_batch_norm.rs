//! Batch norm over the micro-batches that the data-parallel ranks run at the same time.

use brigade_kernels::{Function, apply_function};
use burn::backend::DispatchTensor;
use burn::module::{Flag, Module, Param, RunningState};
use burn::nn::BatchNorm;
use burn::tensor::module::{batch_norm, batch_norm_train};
use burn::tensor::{DType, FloatDType, Tensor};

use super::data_group::{DataGroup, Peers};

/// Burn's [`BatchNorm`], whose mean and variance in training are those of the micro-batches that all data-parallel ranks run at the same
/// time, as of PyTorch's `SyncBatchNorm`. Where a rank's micro-batch is small, its own statistics are noise.
///
/// It is made of a batch norm, and has its parameters, under the same names, and its running statistics:
///
/// ```
/// use brigade_core::nn::SyncBatchNorm;
/// use burn::nn::BatchNormConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::default();
/// let norm: SyncBatchNorm = BatchNormConfig::new(8).init(&device).into();
/// assert_eq!(norm.forward(Tensor::<4>::zeros([2, 8, 3, 3], &device)).dims(), [2, 8, 3, 3]);
/// ```
///
/// A step on ranks with a micro-batch of `m` samples each is, up to rounding, that of [`BatchNorm`] in one process on the union of these
/// micro-batches; so the number of data-parallel ranks is part of what is computed. For one such number the bits are the same on any mesh,
/// recomputed and resumed, as long as the same micro-batches run together: see [`Zero::micro_batch_number`](crate::Zero::micro_batch_number).
/// Running statistics count a union once. The running variance is that of the values themselves, divided by their number `n`, as of [`BatchNorm`]; PyTorch's divides by `n - 1`.
///
/// In evaluation, frozen, outside of training by Brigade and with a single data-parallel rank it is [`BatchNorm`], to the bit.
///
/// Forward and backward have one collective each, of two numbers per channel, which the rank waits for. All ranks must run it equally often, so a block must
/// not decide by its data whether it does.
#[derive(Module, Debug)]
pub struct SyncBatchNorm {
    /// The scale, of shape `[channels]`.
    pub gamma: Param<Tensor<1>>,
    /// The shift, of shape `[channels]`.
    pub beta: Param<Tensor<1>>,
    /// Whether it uses the statistics of its input in training: it does not where the module is frozen.
    pub training: Param<Flag>,
    /// The running mean, of shape `[channels]`.
    pub running_mean: RunningState<Tensor<1>>,
    /// The running variance, of shape `[channels]`.
    pub running_var: RunningState<Tensor<1>>,
    /// How much of the running statistics a step replaces.
    pub momentum: f64,
    /// What is added to the variance.
    pub epsilon: f64,
    /// Whether it computes over ranks: if not, it is [`BatchNorm`].
    pub synchronised: bool,
}

impl From<BatchNorm> for SyncBatchNorm {
    fn from(norm: BatchNorm) -> Self {
        let BatchNorm { gamma, beta, training, running_mean, running_var, momentum, epsilon } = norm;
        Self { gamma, beta, training, running_mean, running_var, momentum, epsilon, synchronised: true }
    }
}

impl SyncBatchNorm {
    /// Normalises an input of shape `[batch, channels, …]`.
    ///
    /// # Panics
    /// As [`BatchNorm::forward`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let is_training = input.device().is_autodiff() && self.training.is_enabled();
        let alone = Peers::None { leaves: false };
        let peers = if is_training && self.synchronised { Peers::now() } else { alone };
        match peers {
            Peers::Some(group) => self.forward_over(group, input),
            Peers::None { leaves: false } => self.alone().forward(input),
            Peers::None { leaves: true } => {
                let (gamma, beta) = (self.gamma.val(), self.beta.val());
                batch_norm_train(input, gamma, beta, self.epsilon).output
            }
        }
    }

    /// The same parameters and running statistics without other ranks.
    fn alone(&self) -> BatchNorm {
        let Self { gamma, beta, training, running_mean, running_var, momentum, epsilon, .. } = self.clone();
        BatchNorm { gamma, beta, training, running_mean, running_var, momentum, epsilon }
    }

    fn forward_over<const D: usize>(&self, group: DataGroup, input: Tensor<D>) -> Tensor<D> {
        let shape = input.shape();
        let [channels] = self.gamma.dims();
        assert!(
            D >= 2 && shape[1] == channels,
            "a batch norm of {channels} channels cannot take an input of {shape:?}"
        );
        let x: Tensor<3> = input.reshape([shape[0] as i32, channels as i32, -1]);
        let inputs = [x.into_dispatch(), self.gamma.val().into_dispatch(), self.beta.val().into_dispatch()];
        let normalise = Normalise { group, epsilon: self.epsilon };
        let (output, Statistics { mean, variance, .. }) = apply_function(normalise, inputs);
        for (state, found) in [(&self.running_mean, mean), (&self.running_var, variance)] {
            let before = state.value_sync();
            let found = found.cast(before.dtype()).mul_scalar(self.momentum);
            state.update(before.mul_scalar(1.0 - self.momentum).add(found).detach());
        }
        Tensor::<3>::from_dispatch(output).reshape(shape)
    }
}

/// Of an input `[batch, channels, rest]`, `gamma` and `beta` the input normalised by the mean and the variance over the inputs of all ranks, and these.
/// Statistics are in fp32.
#[derive(Debug)]
struct Normalise {
    group: DataGroup,
    epsilon: f64,
}

/// Over the inputs of all ranks, without a graph.
#[derive(Debug, Clone)]
struct Statistics {
    /// `[channels]`.
    mean: Tensor<1>,
    /// `[channels]`, of the population.
    variance: Tensor<1>,
    /// Values of a channel, `[1]`.
    count: Tensor<1>,
}

#[derive(Debug, Clone)]
struct Saved {
    x: Tensor<3>,
    gamma: Tensor<1>,
    statistics: Statistics,
}

impl Normalise {
    /// The parts' means and variances are brought together without a difference of large sums (Chan, Golub and LeVeque, "Algorithms for computing the sample
    /// variance", 1983).
    fn statistics(&self, x: &Tensor<3>) -> Statistics {
        let rows = by_channel(in_f32(x.clone()));
        let [channels, own_count] = rows.dims();
        let mean = rows.clone().mean_dim(1);
        let variance = (rows - mean.clone()).square().mean_dim(1);
        let own_count = Tensor::full([1], own_count as f32, (&x.device(), DType::F32));
        let own = Tensor::cat(vec![own_count, mean.reshape([-1]), variance.reshape([-1])], 0);
        let all = self.group.all_gather(own);
        let counts = all.clone().narrow(1, 0, 1);
        let means = all.clone().narrow(1, 1, channels);
        let variances = all.narrow(1, 1 + channels, channels);
        let count = counts.clone().sum_dim(0);
        let shares = counts / count.clone();
        let mean = (shares.clone() * means.clone()).sum_dim(0);
        let variance = (shares * (variances + (means - mean.clone()).square())).sum_dim(0);
        Statistics { mean: mean.reshape([-1]), variance: variance.reshape([-1]), count: count.reshape([-1]) }
    }
}

impl Function<3> for Normalise {
    type Saved = Saved;
    type Extra = Statistics;

    fn forward(&self, inputs: [DispatchTensor; 3]) -> (DispatchTensor, Saved, Statistics) {
        let [x, gamma, beta] = inputs;
        let (x, gamma) = (Tensor::<3>::from_dispatch(x), Tensor::<1>::from_dispatch(gamma));
        let statistics = self.statistics(&x);
        let Statistics { mean, variance, .. } = statistics.clone();
        let (mean, variance) = (mean.cast(x.dtype()), variance.cast(x.dtype()));
        let beta = Tensor::from_dispatch(beta);
        let output = batch_norm(x.clone(), gamma.clone(), beta, mean, variance, self.epsilon);
        (output.into_dispatch(), Saved { x, gamma, statistics: statistics.clone() }, statistics)
    }

    /// With n values of a channel on all ranks, the gradient of x is γ / σ · (g − Σg / n − x̂ · Σ(g · x̂) / n), with sums over all ranks. Those of gamma and beta
    /// are this rank's part, as of any parameter.
    fn backward(
        self,
        saved: Saved,
        gradient: DispatchTensor,
        wanted: [bool; 3],
    ) -> [Option<DispatchTensor>; 3] {
        let Saved { x, gamma, statistics: Statistics { mean, variance, count } } = saved;
        let (dtypes, [channels]) = ((x.dtype(), gamma.dtype()), gamma.dims());
        let per_channel = |values: Tensor<1>| values.reshape([1, channels as i32, 1]);
        let gradient = in_f32(Tensor::<3>::from_dispatch(gradient));
        let inverse = per_channel((variance + self.epsilon).sqrt().recip());
        let normalised = (in_f32(x) - per_channel(mean)) * inverse.clone();
        let sum = |values: Tensor<3>| by_channel(values).sum_dim(1).reshape([-1]);
        let d_beta: Tensor<1> = sum(gradient.clone());
        let d_gamma: Tensor<1> = sum(gradient.clone() * normalised.clone());
        let d_x = wanted[0].then(|| {
            let own = Tensor::cat(vec![d_beta.clone(), d_gamma.clone()], 0);
            let means = self.group.all_reduce(own) / count;
            let of_gradient = per_channel(means.clone().narrow(0, 0, channels));
            let of_product = per_channel(means.narrow(0, channels, channels));
            let scale = per_channel(in_f32(gamma)) * inverse;
            scale * (gradient - of_gradient - normalised * of_product)
        });
        [
            d_x.map(|found| found.cast(dtypes.0).into_dispatch()),
            wanted[1].then(|| d_gamma.cast(dtypes.1).into_dispatch()),
            wanted[2].then(|| d_beta.cast(dtypes.1).into_dispatch()),
        ]
    }
}

/// Of `[batch, channels, rest]` all values of a channel in a row.
fn by_channel(x: Tensor<3>) -> Tensor<2> {
    let [batch, channels, rest] = x.dims();
    x.swap_dims(0, 1).reshape([channels, batch * rest])
}

fn in_f32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.cast(FloatDType::F32)
}
