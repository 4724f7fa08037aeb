//! Models on a device whose blocks are measured on the CPU, where memory can be counted.

use brigade::core::{Batch, Chain, Dtype, HeapMeter};
use brigade::models::CausalLm;
use brigade::models::gpt::{Gelu, GptConfig};
use brigade_hf::Config;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use crate::backend::backends;

/// Counts nothing, and lets blocks run forward and backward.
struct Uncounted;

impl HeapMeter for Uncounted {
    fn in_use(&self) -> u64 {
        0
    }

    fn begin(&self) {}

    fn most_added(&self) -> u64 {
        0
    }
}

#[test]
fn blocks_run_where_the_micro_batch_is() {
    let shape = GptConfig {
        vocabulary: 24,
        sequence_length: 6,
        width: 12,
        layers: 2,
        heads: 3,
        tied_head: true,
        activation: Gelu::GeluTanh,
        dropout: 0.1,
        initializer_range: 0.02,
    };
    let of_gpt = |device: &Device| {
        let batch = shape.blank_batch(2, &brigade_cpu::device());
        let model = shape.model(1, device).unwrap();
        model.measure_activations(batch, Dtype::F32, false, Some(&Uncounted)).unwrap()
    };
    // A Llama, with tables of rotary positions, which smaller ones stand for.
    let of_llama = |device: &Device| {
        let fields = serde_json::json!({
            "model_type": "llama", "vocab_size": 16_000, "hidden_size": 512, "intermediate_size": 1024,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        });
        let config = Config::from_fields("config.json", fields.as_object().unwrap()).unwrap();
        let shape = CausalLm::from_config(&config, Some(256)).unwrap();
        let model = shape.model(1, device).unwrap();
        assert!(model.is_soon_measured());
        let batch = shape.blank_batch(2, &brigade_cpu::device());
        model.measure_activations(batch, Dtype::F32, false, Some(&Uncounted)).unwrap()
    };
    // Values that are there are copied, and running state stays where it is.
    type Normed = (Linear, BatchNorm);
    let normed = |device: &Device| -> Normed {
        let device = &device.clone().autodiff();
        let linear = LinearConfig::new(4, 4).init(device);
        drop(linear.weight.val());
        (linear, BatchNormConfig::new(4).init(device))
    };
    let of_normed = |(linear, norm): &Normed| {
        let run = |(linear, norm): &Normed, x: Tensor<2>| norm.forward(linear.forward(x));
        let model = Chain::new()
            .then_fn("normed", (linear.clone(), norm.clone()), run)
            .loss(|output: Tensor<2>, target: Tensor<2>| (output - target).square().sum());
        let rows = || Tensor::<2>::ones([8, 4], &brigade_cpu::device());
        let batch = Batch::new(rows(), rows(), 8);
        model.measure_activations(batch, Dtype::F32, false, Some(&Uncounted)).unwrap()
    };
    let host = brigade_cpu::device();
    let expected = (of_gpt(&host), of_llama(&host), of_normed(&normed(&host)));
    for backend in backends() {
        let found = backend.on_threads(1, 1, |device, _| {
            let module = normed(&device);
            let found = (of_gpt(&device), of_llama(&device), of_normed(&module));
            let mean = module.1.running_mean.value_sync();
            assert_eq!(
                (mean.device().inner(), mean.into_data().try_to_vec::<f32>().unwrap()),
                (device, vec![0.0; 4])
            );
            found
        });
        assert_eq!(found[0], expected, "{}", backend.name);
    }
}
