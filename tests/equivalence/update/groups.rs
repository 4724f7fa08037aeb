//! Groups of parameters: other learning rates, other weight decays, frozen ones.

use std::collections::BTreeMap;

use brigade::core::{Error, Groups, NamedTensor, OptimizerFactory, ParameterGroup};
use burn::optim::{AdamW, AdamWConfig, Optimizer};
use burn::tensor::Tensor;

use crate::mesh::same_bits;

use super::{ALONE, Case, RATE, of};

fn groups() -> Vec<ParameterGroup> {
    let group = ParameterGroup::matching;
    vec![
        ParameterGroup { learning_rate_factor: 0.5, ..group("[ab].*.bias") },
        ParameterGroup { weight_decay: Some(0.3), ..group("b.*") },
        ParameterGroup { frozen: true, ..group("c.linear.weight") },
        ParameterGroup { learning_rate_factor: 2.0, weight_decay: Some(0.0), ..group("?.linear.weight") },
    ]
}

/// The learning rate and the weight decay of each parameter; none if it is frozen.
fn expected(name: &str) -> Option<(f64, f32)> {
    match name {
        "a.linear.bias" | "b.linear.bias" => Some((0.5 * RATE, 0.0)),
        "b.linear.weight" => Some((RATE, 0.3)),
        "c.linear.weight" => None,
        "a.linear.weight" | "d.linear.weight" => Some((2.0 * RATE, 0.0)),
        "c.linear.bias" | "d.linear.bias" => Some((RATE, 0.0)),
        other => panic!("{other}"),
    }
}

fn flat(tensor: &NamedTensor) -> Tensor<1> {
    Tensor::from_floats(tensor.data.as_slice::<f32>().unwrap(), &brigade_cpu::device())
}

/// What a block's learning rate is multiplied by: each has the decay of the blocks after it.
fn decayed(name: &str, layer_decay: f64) -> f64 {
    let after = ["d", "c", "b", "a"].iter().position(|block| name.starts_with(block)).unwrap();
    layer_decay.powi(after as i32)
}

#[test]
fn each_parameter_is_stepped_as_its_group_and_its_layer_say() {
    for layer_decay in [1.0, 0.7] {
        each_is_stepped(layer_decay);
    }
}

fn each_is_stepped(layer_decay: f64) {
    let case = Case { groups: groups(), layer_decay, ..Case::default() };
    let alone = Groups::single_rank();
    let mut engine = case.engine(alone.clone(), 0).unwrap();
    let mut states: BTreeMap<String, _> = BTreeMap::new();
    for step in 0..3 {
        let batches = case.batches(&alone, 0, step);
        let before = engine.tensors(0).unwrap();
        let (_, gradients) = engine.gradients(&batches, 0).unwrap();
        assert_eq!(gradients.len(), 7, "the frozen parameter has none");
        engine.step(batches, RATE).unwrap();
        for (old, new) in before.iter().zip(engine.tensors(0).unwrap()) {
            let Some((rate, decay)) = expected(&old.name) else {
                same_bits(std::slice::from_ref(old), &[new], "frozen");
                continue;
            };
            let gradient = flat(gradients.iter().find(|gradient| gradient.name == old.name).unwrap());
            let adamw: AdamW = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(decay).build();
            // As a step multiplies it: first the factors.
            let rate = RATE * (decayed(&old.name, layer_decay) * (rate / RATE));
            let (stepped, state) = adamw.step(rate, flat(old), gradient, states.remove(&old.name));
            states.extend(state.map(|state| (old.name.clone(), state)));
            assert_eq!(stepped.into_data().as_bytes(), flat(&new).into_data().as_bytes(), "{}", old.name);
        }
    }
}

#[test]
fn groups_equal_one_process() {
    Case { groups: groups(), clipping: Some(0.05), ..Case::default() }.equals_one_process("groups");
    let decayed = Case { groups: groups(), layer_decay: 0.8, ..Case::default() }.equals_one_process("layers");
    let plain = Case { groups: groups(), ..Case::default() }.train(ALONE, None, 0..4);
    assert!(of(&decayed.weights, "a.linear.weight") != of(&plain.weights, "a.linear.weight"));
}

#[test]
fn a_run_goes_on_with_other_groups() {
    let before = Case::default().train((1, 2, 3), None, 0..2).saved;
    let others: Vec<_> = groups().into_iter().filter(|group| !group.frozen).collect();
    let case = Case { groups: others, ..Case::default() };
    let alone = case.train(ALONE, Some(&before), 2..4);
    let spread = case.train((2, 2, 3), Some(&before), 2..4);
    same_bits(&spread.weights, &alone.weights, "with groups");
    let plain = Case::default().train(ALONE, Some(&alone.saved), 4..5);
    assert!(of(&plain.weights, "d.linear.weight") != of(&alone.weights, "d.linear.weight"));
    // What was trained has a state that frozen parameters do not take, and the other way round.
    let frozen = Case { groups: groups(), ..Case::default() };
    let refused = |case: &Case, mut from: &crate::resume::Saved| match case
        .engine(Groups::single_rank(), 0)
        .unwrap()
        .restore(2, &mut from)
    {
        Err(Error::State(why)) => why,
        other => panic!("{other:?}"),
    };
    let why = refused(&frozen, &before);
    assert!(why.contains("`c") && why.contains("a different set is frozen"), "{why}");
    let why = refused(&Case::default(), &frozen.train(ALONE, None, 0..2).saved);
    assert!(why.contains("`c") && why.contains("a different set is frozen"), "{why}");
}

#[test]
fn wrong_groups_are_refused_before_anything_is_drawn() {
    let refused = |case: Case| case.engine(Groups::single_rank(), 0).err().unwrap().to_string();
    let nothing = vec![ParameterGroup::matching("e.*")];
    let message = refused(Case { groups: nothing, ..Case::default() });
    assert!(
        message
            .contains("optimizer.groups.pattern = e.* is not possible: it matches no parameter; there is `"),
        "{message}"
    );
    let fixed = AdamWConfig::new().build();
    let optimizer = OptimizerFactory::new(fixed.clone(), fixed);
    let message = refused(Case { groups: groups(), optimizer, ..Case::default() });
    assert!(message.starts_with("optimizer.groups.weight_decay = 0.3 is not possible: "), "{message}");
    let all = vec![ParameterGroup { frozen: true, ..ParameterGroup::matching("*") }];
    let message = refused(Case { groups: all, ..Case::default() });
    assert!(
        message.starts_with("the model has no parameter to train: patterns of train.freeze"),
        "{message}"
    );
}
