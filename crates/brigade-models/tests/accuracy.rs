//! Correct predictions of a language model.

#![allow(clippy::unwrap_used)]

use brigade_models::Logits;
use brigade_models::gpt::{Targets, cross_entropy};
use burn::tensor::{Device, Tensor};

#[test]
fn valid_targets_that_are_the_most_likely_token_count() {
    let device = Device::default();
    let logits = [[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 5.0]];
    let correct = |mask: Option<[[f32; 4]; 1]>| {
        let targets = Targets {
            tokens: Tensor::from_data([[1, 2, 0, 2]], &device),
            mask: mask.map(|mask| Tensor::from_data(mask, &device)),
        };
        let (_, [correct]) = cross_entropy(Logits::Whole(Tensor::from_data(logits, &device)), targets);
        correct.into_data().try_to_vec::<f32>().unwrap()
    };
    assert_eq!(correct(None), [3.0]);
    assert_eq!(correct(Some([[1.0, 1.0, 1.0, 0.0]])), [2.0]);
}
