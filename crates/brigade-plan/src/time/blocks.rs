//! How long a block computes: products at a share of the peak that grows with their sizes, all else at the memory's speed.

use serde::Serialize;

use crate::cluster::{Device, Dtype};
use crate::model::ModelShape;

/// What the time of a block depends on besides the model and the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockTimeInputs {
    /// Tokens of a sequence.
    pub sequence_length: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// The type of the computation.
    pub dtype: Dtype,
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Whether attention is fused.
    pub fused_attention: bool,
    /// Whether the loss is one kernel forward and one backward.
    pub fused_loss: bool,
    /// Whether gradients are added to those of earlier micro-batches.
    pub accumulates: bool,
}

/// Seconds that a block computes for one micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BlockTime {
    /// The forward.
    pub forward: f64,
    /// The gradient of its input.
    pub backward_input: f64,
    /// The gradients of its weights, and adding them up.
    pub backward_weights: f64,
}

impl BlockTime {
    /// Forward and backward.
    pub fn total(&self) -> f64 {
        self.forward + self.backward_input + self.backward_weights
    }
}

/// Kernels of a layer's forward; its backward has twice as many.
const KERNELS: f64 = 16.0;

/// Those that tensor-parallel ranks start besides: four collectives, and for two products the parts before and after a rank's own shard, which are computed apart to be ready while the
/// others' shards come (Nanotron's `_ColumnLinearAsyncCommunication`).
const TENSOR_PARALLEL_KERNELS: f64 = 8.0;

/// Bytes that are read and written to add a micro-batch's gradient to its sum, per parameter, besides those of the gradient itself.
const ADDING: f64 = 8.0;

struct Roofline<'a> {
    device: &'a Device,
    peak: f64,
    bytes: f64,
}

impl Roofline<'_> {
    /// A product of `m x k` and `k x n` matrices.
    fn product(&self, m: f64, n: f64, k: f64) -> f64 {
        let large = |size: f64| size / (size + self.device.half_dimension);
        let reached = self.device.efficiency.products * large(m) * large(n) * large(k);
        let flops = 2.0 * m * n * k / (self.peak * reached);
        flops.max(self.moving((m * n + m * k + n * k) * self.bytes))
    }

    /// So many values of exponentials or activations.
    fn functions(&self, values: f64) -> f64 {
        values * self.device.function
    }

    /// Reading and writing this many bytes.
    fn moving(&self, bytes: f64) -> f64 {
        bytes / (self.device.memory_bandwidth * self.device.efficiency.memory)
    }
}

/// The time of each block: embedding, layers, head with the loss.
pub fn block_times(model: &ModelShape, device: &Device, settings: &BlockTimeInputs) -> Vec<BlockTime> {
    let line = Roofline { device, peak: device.peak(settings.dtype), bytes: settings.dtype.bytes() as f64 };
    let mut times = Vec::with_capacity(model.blocks());
    times.push(embedding(model, &line, settings));
    for layer in 0..model.layers() {
        // Layers differ in nothing but their windows, and in what is trained of them.
        let same = layer > 0
            && model.windows[layer] == model.windows[layer - 1]
            && model.counts.get(layer + 1) == model.counts.get(layer);
        let time = match times.last() {
            Some(before) if same => *before,
            _ => layer_time(model, layer, &line, settings),
        };
        times.push(time);
    }
    times.push(head(model, &line, settings));
    for time in &mut times[..model.first_trained()] {
        *time = BlockTime { forward: time.forward, ..BlockTime::default() };
    }
    times
}

fn tokens(settings: &BlockTimeInputs) -> f64 {
    (settings.sequence_length * settings.micro_batch) as f64
}

/// Adding a micro-batch's gradients of this many parameters up.
fn adding(line: &Roofline<'_>, parameters: f64, settings: &BlockTimeInputs) -> f64 {
    if settings.accumulates { line.moving(parameters * (line.bytes + ADDING)) } else { 0.0 }
}

fn embedding(model: &ModelShape, line: &Roofline<'_>, settings: &BlockTimeInputs) -> BlockTime {
    let values = tokens(settings) * model.hidden as f64 / settings.tp as f64;
    let rows = model.trained_parameters(0) as f64 / settings.tp as f64;
    BlockTime {
        forward: line.moving(2.0 * values * line.bytes),
        backward_input: 0.0,
        backward_weights: line.moving(3.0 * values * line.bytes + rows * line.bytes)
            + adding(line, rows, settings),
    }
}

fn layer_time(
    model: &ModelShape,
    layer: usize,
    line: &Roofline<'_>,
    settings: &BlockTimeInputs,
) -> BlockTime {
    let tp = settings.tp as f64;
    let [h, f, q, k] =
        [model.hidden, model.intermediate, model.query_size(), model.key_size()].map(|size| size as f64);
    let tokens = tokens(settings);
    let gate = if model.gated { 2.0 } else { 1.0 };
    // Outputs and inputs of each product.
    let products = [((q + 2.0 * k) / tp, h), (h, q / tp), (gate * f / tp, h), (h, f / tp)];
    let sum = |time: &dyn Fn(f64, f64) -> f64| products.iter().map(|(n, k)| time(*n, *k)).sum::<f64>();
    let forward = sum(&|n, k| line.product(tokens, n, k));
    let input = sum(&|n, k| line.product(tokens, k, n));
    let weights = sum(&|n, k| line.product(n, k, tokens));

    let context = model.context(layer, settings.sequence_length);
    let scores = 4.0 * tokens * context * q / tp / (line.peak * line.device.efficiency.attention);
    // The backward of fused attention computes the scores again: five products for two (Dao 2023, "FlashAttention-2", section 3.1).
    let (attention, attention_backward) = match settings.fused_attention {
        true => (scores, 2.5 * scores),
        false => {
            let all = tokens * settings.sequence_length as f64 * model.heads as f64 / tp;
            (scores + line.moving(5.0 * all * line.bytes), 2.0 * scores + line.moving(8.0 * all * line.bytes))
        }
    };
    // Norms, rotations, additions; activation and gate.
    let passes = 14.0 * h + 2.0 * (q + k) + if model.gated { 5.0 } else { 2.0 } * f;
    let values = line.moving(tokens * passes / tp * line.bytes);
    // An activation's gradient is as much to compute as its value, and the scores' exponentials are computed again.
    let functions = line.functions(tokens * (f + context * model.heads as f64) / tp);
    let exchanges = if settings.tp > 1 { TENSOR_PARALLEL_KERNELS } else { 0.0 };
    let launches = line.device.launch * (KERNELS + exchanges);
    let (parameters, share) =
        (model.trained_parameters(layer + 1) as f64 / tp, model.trained_share(layer + 1));
    BlockTime {
        forward: (forward + attention + values + functions).max(launches),
        backward_input: (input + attention_backward + 2.0 * values + functions).max(launches),
        backward_weights: (share * weights + adding(line, parameters, settings)).max(if share > 0.0 {
            launches
        } else {
            0.0
        }),
    }
}

fn head(model: &ModelShape, line: &Roofline<'_>, settings: &BlockTimeInputs) -> BlockTime {
    let (rows, outputs) = match model.labels {
        Some(labels) => (settings.micro_batch as f64, labels),
        None => (tokens(settings), model.vocabulary),
    };
    let (h, v) = (model.hidden as f64, outputs as f64 / settings.tp as f64);
    let logits = rows * v;
    // The loss in fp32: read and widened, the largest and the sum of each row, and the gradient. One by one: widened, the largest, the difference to it, its
    // exponential, their sum, the quotient; in the backward the product with the gradient, which is then narrowed.
    let [moved, moved_back] = match settings.fused_loss {
        true => [2.0 * line.bytes + 8.0, line.bytes + 8.0],
        false => [line.bytes + 4.0 + 4.0 + 8.0 + 8.0 + 4.0 + 8.0, 8.0 + 4.0 + line.bytes],
    };
    let forward = line.moving(logits * moved) + line.functions(logits);
    let backward = line.moving(logits * moved_back);
    let share = match model.tied {
        true => f64::from(u8::from(model.trains_table())),
        false => model.trained_share(model.blocks() - 1),
    };
    let parameters = share * h * v;
    BlockTime {
        forward: line.product(rows, v, h) + forward,
        backward_input: line.product(rows, h, v) + backward,
        backward_weights: share * line.product(v, h, rows) + adding(line, parameters, settings),
    }
}

/// Seconds of an optimizer's step over this many elements: masters, moments and the gradient are read, and written but for the gradient, and the
/// parameters written. `host_bandwidth`: bytes a second to the host's memory, where the state is there.
pub fn optimizer_seconds(
    device: &Device,
    elements: f64,
    bytes_per_element: f64,
    parameter_bytes: f64,
    host_bandwidth: Option<f64>,
) -> f64 {
    let moved = elements * (2.0 * bytes_per_element + 4.0 + parameter_bytes);
    match host_bandwidth {
        // Gradients go down, parameters come back; the host's memory is taken to be as fast as four such links.
        Some(link) => elements * (4.0 + parameter_bytes) / link + moved / (4.0 * link),
        None => moved / (device.memory_bandwidth * device.efficiency.memory),
    }
}
