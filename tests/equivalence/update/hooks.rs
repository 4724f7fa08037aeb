//! Gradient hooks: functions of elements, whoever owns them.

use std::sync::{Arc, Mutex};

use brigade::core::{
    DP, Engine, EngineSettings, Error, Groups, Mesh, ParameterGroup, UnitGradient, WORKERS, keyed_seed,
};
use burn::tensor::{Distribution, Tensor, TensorData};

use crate::mesh::{on_mesh, on_threads, same_bits};
use crate::strategies::local_updates::averaging;

use super::{ALONE, Case, RATE};

/// Noise by step, name and element on all but one parameter, which is masked by its elements.
fn noise_and_mask(unit: &UnitGradient<'_>, gradient: Tensor<1>) -> Tensor<1> {
    let (mut noise, mut mask) = (vec![0f32; unit.range.len()], vec![1f32; unit.range.len()]);
    for part in unit.parameters() {
        for (element, place) in part.elements.zip(part.place) {
            match part.name.as_str() {
                "b.linear.weight" => mask[place] = f32::from(u8::from(element % 3 > 0)),
                name => {
                    noise[place] = (keyed_seed(unit.step * 1000 + element as u64, name) >> 40) as f32 * 1e-9
                }
            }
        }
    }
    let tensor =
        |values: Vec<f32>| Tensor::from_data(TensorData::new(values, [unit.range.len()]), &gradient.device());
    gradient.clone() * tensor(mask) + tensor(noise)
}

#[test]
fn an_elementwise_hook_equals_one_process() {
    let case = Case { hook: Some(noise_and_mask), clipping: Some(0.05), ..Case::default() };
    let changed = case.equals_one_process("a hook");
    let plain = Case { hook: None, ..case.clone() }.train(ALONE, None, 0..4);
    assert_ne!(
        changed.reports[0].grad_norm, plain.reports[0].grad_norm,
        "the norm is that of the changed gradients"
    );
    Case { every: 2, ..case }.equals_one_process("a hook and steps without an update");
}

#[test]
fn a_hook_that_draws() {
    let noise = |_: &UnitGradient<'_>, gradient: Tensor<1>| {
        gradient.clone() + gradient.random_like(Distribution::Uniform(0.0, 1e-3))
    };
    Case { hook: Some(noise), ..Case::default() }.draws_alike("a hook that draws");
}

/// The mean over workers would else be as noisy as each of them.
#[test]
fn workers_draw_for_themselves_and_their_ranks_alike() {
    let mesh = Mesh::new(4, [(WORKERS, 2), (DP, 2)]).unwrap();
    let drawn = on_mesh(&mesh, |groups| {
        let settings = EngineSettings { strategy: averaging(2), ..EngineSettings::default() };
        let case = Case::default();
        let mut engine = Engine::new(case.model(), 3, &case.optimizer, groups.clone(), settings).unwrap();
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let seen = drawn.clone();
        engine.on_gradient(move |_, gradient| {
            let noise = gradient.random_like(Distribution::Default);
            seen.lock().unwrap().extend(noise.try_into_vec_as::<f32>().unwrap());
            gradient
        });
        for step in 0..2 {
            let batches = case.batches(&groups, 0, step);
            match engine.steps_alone() {
                true => engine.inner_step(batches, RATE).unwrap(),
                false => drop(engine.step(batches, RATE).unwrap()),
            }
        }
        drop(engine);
        Arc::into_inner(drawn).unwrap().into_inner().unwrap()
    });
    assert_eq!(drawn[0].len(), 2 * 4 * 420);
    assert!(drawn[0] == drawn[1] && drawn[2] == drawn[3] && drawn[0] != drawn[2]);
}

#[test]
fn a_hook_that_changes_nothing_changes_no_bit() {
    for clipping in [None, Some(0.05)] {
        let plain = Case { clipping, ..Case::default() };
        let hooked = Case { hook: Some(|_, gradient| gradient), ..plain.clone() };
        let [plain, hooked] = [plain, hooked].map(|case| case.train((1, 2, 2), None, 0..3));
        same_bits(&hooked.weights, &plain.weights, "a hook that changes nothing");
    }
}

#[test]
fn every_element_is_seen_once_per_update_by_those_who_own_it() {
    let groups = vec![ParameterGroup { frozen: true, ..ParameterGroup::matching("c.linear.bias") }];
    for (pp, dp, stage) in [(1, 1, 0), (1, 2, 0), (1, 2, 3), (2, 2, 1), (1, 4, 2)] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        on_threads(pp, dp, |mesh| {
            let case = Case { every: 2, groups: groups.clone(), ..Case::default() };
            let mut engine = case.engine(mesh.clone(), stage).unwrap();
            let (seen, device) = (seen.clone(), brigade_cpu::device());
            engine.on_gradient(move |unit: &UnitGradient<'_>, gradient| {
                assert_eq!((gradient.dims(), gradient.device()), ([unit.range.len()], device.clone()));
                seen.lock()
                    .unwrap()
                    .extend(unit.parameters().map(|part| (unit.step, part.name, part.elements)));
                gradient
            });
            for step in 0..4 {
                match engine.synchronizes() {
                    true => drop(engine.step(case.batches(&mesh, stage, step), RATE).unwrap()),
                    false => engine.accumulate(case.batches(&mesh, stage, step)).unwrap(),
                }
            }
        });
        let copies = if stage == 0 { dp } else { 1 };
        let mut counted = std::collections::BTreeMap::new();
        for (step, name, elements) in seen.lock().unwrap().iter() {
            elements
                .clone()
                .for_each(|element| *counted.entry((*step, name.clone(), element)).or_insert(0) += 1);
        }
        assert_eq!(counted.len(), 2 * (4 * 420 - 20), "both updates, without the frozen bias");
        assert!(counted.values().all(|times| *times == copies), "pp {pp} x dp {dp}, ZeRO-{stage}");
        assert!(counted.keys().all(|(step, ..)| [2, 4].contains(step)));
    }
}

#[test]
fn a_hook_must_return_as_many_values() {
    let case = Case { hook: Some(|_, gradient| gradient.slice(0..3)), ..Case::default() };
    let groups = Groups::single_rank();
    let error = case.engine(groups.clone(), 0).unwrap().step(case.batches(&groups, 0, 0), RATE).unwrap_err();
    let Error::Model(message) = error else { panic!("{error}") };
    assert!(
        message.starts_with("a gradient hook must return 420 values of fp32 for the unit `a`"),
        "{message}"
    );
}
