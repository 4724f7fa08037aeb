//! Schedules that are not made here: what the checks find, and a zero-bubble schedule.

use Action::{Backward, BackwardInput, BackwardWeights, Forward, Receive, Reduce, Send};
use brigade_plan::{
    Action, Pass, Pipeline, PipelineScheduleKind, Placement, ReshardPolicy, ScheduleError, Stage,
    StageSchedule, StageTask,
};

fn task(micro_batch: usize) -> StageTask {
    StageTask { chunk: 0, micro_batch }
}

fn send(pass: Pass, micro_batch: usize, to: usize) -> Action {
    Send { pass, task: task(micro_batch), to }
}

fn receive(pass: Pass, micro_batch: usize, from: usize) -> Action {
    Receive { pass, task: task(micro_batch), from }
}

/// Two stages, two micro-batches, 1F1B, after a change to the lists.
fn changed(change: impl FnOnce(&mut [Vec<Action>])) -> Result<Pipeline, ScheduleError> {
    let pipeline = Pipeline::new(PipelineScheduleKind::OneFOneB, 2, 1, 2)?;
    let mut actions: Vec<_> = (0..2).map(|rank| pipeline.actions(rank).to_vec()).collect();
    change(&mut actions);
    Pipeline::from_actions(Placement::Loop, 2, 1, 2, actions)
}

/// The rank that is blamed, and for what.
fn fault(change: impl FnOnce(&mut [Vec<Action>])) -> (usize, String) {
    match changed(change) {
        Err(ScheduleError::Fault { rank, fault }) => (rank, fault),
        other => panic!("{other:?}"),
    }
}

fn place(actions: &[Action], wanted: Action) -> usize {
    actions.iter().position(|action| *action == wanted).expect("the action is there")
}

#[test]
fn a_schedule_that_was_not_changed_passes() {
    let pipeline = changed(|_| {}).unwrap();
    assert_eq!(pipeline.kind(), None);
    assert_eq!(pipeline.peak_in_flight(0), 2);
}

#[test]
fn what_is_missing_is_found() {
    let without = |rank: usize, action: Action| {
        fault(move |lists: &mut [Vec<Action>]| lists[rank].retain(|other| *other != action))
    };
    assert_eq!(without(1, Reduce { chunk: 0 }), (1, "the reduction of chunk 0 is missing".into()));
    assert_eq!(without(0, Forward(task(1))).1, "the activation of 1.0 is sent before it is computed");
    assert_eq!(without(0, Forward(task(0))).1, "the activation of 0.0 is sent before it is computed");
    assert_eq!(
        without(0, send(Pass::Forward, 1, 1)),
        (0, "action 6 (backward 1.0) waits forever".into()),
        "its gradient is never computed"
    );
    assert_eq!(
        without(1, receive(Pass::Forward, 1, 0)),
        (1, "forward 1.0 needs the activation from 0, which it has not asked for".into())
    );
    assert_eq!(
        without(1, Backward(task(0))),
        (1, "backward 1.0 comes when it is the turn of micro-batch 0".into())
    );
    assert_eq!(
        fault(|lists| lists.iter_mut().for_each(Vec::clear)),
        (0, "forward 0.0 is missing".into()),
        "an empty step is not a step"
    );
    assert_eq!(fault(|lists| lists[0].truncate(8)).1, "the reduction of chunk 0 is missing");
}

#[test]
fn what_stands_twice_is_found() {
    let twice = |rank: usize, action: Action| {
        fault(move |lists: &mut [Vec<Action>]| {
            let at = place(&lists[rank], action);
            lists[rank].insert(at, action);
        })
    };
    assert_eq!(twice(0, Forward(task(0))), (0, "forward 0.0 stands twice".into()));
    assert_eq!(
        twice(0, Backward(task(0))),
        (0, "backward 0.0 comes when it is the turn of micro-batch 1".into())
    );
    assert_eq!(twice(0, Reduce { chunk: 0 }), (0, "reduce chunk 0 does not follow its last backward".into()));
    assert_eq!(
        twice(0, receive(Pass::Backward, 1, 1)),
        (0, "the gradient for 1.0 is asked for twice".into())
    );
    assert_eq!(
        twice(0, send(Pass::Forward, 0, 1)),
        (0, "activation 0.0 is sent where activation 1.0 is asked for".into())
    );
}

#[test]
fn a_wrong_order_is_found() {
    let swapped = |rank: usize, one: Action, other: Action| {
        fault(move |lists: &mut [Vec<Action>]| {
            let (one, other) = (place(&lists[rank], one), place(&lists[rank], other));
            lists[rank].swap(one, other);
        })
    };
    assert_eq!(
        swapped(1, Backward(task(0)), Forward(task(0))),
        (1, "backward 0.0 comes before its forward".into())
    );
    assert_eq!(
        swapped(1, Reduce { chunk: 0 }, Backward(task(0))),
        (1, "reduce chunk 0 does not follow its last backward".into())
    );
    assert_eq!(
        swapped(1, receive(Pass::Forward, 0, 0), receive(Pass::Forward, 1, 0)).1,
        "activation 0.0 is sent where activation 1.0 is asked for"
    );
    // Each asks for the other's message only after its own send.
    assert_eq!(
        fault(|lists| {
            lists[0].retain(|action| !matches!(action, Receive { .. }));
            let at = place(&lists[0], Backward(task(0)));
            lists[0].splice(at..at, [receive(Pass::Backward, 0, 1), receive(Pass::Backward, 1, 1)]);
            let late = receive(Pass::Forward, 1, 0);
            lists[1].retain(|action| *action != late);
            let at = place(&lists[1], Forward(task(1)));
            lists[1].insert(at, late);
        }),
        (0, "action 3 (send activation 1.0 to 1) waits forever".into())
    );
}

#[test]
fn what_goes_to_the_wrong_place_is_found() {
    let also_first =
        |rank: usize, action: Action| fault(move |lists: &mut [Vec<Action>]| lists[rank].insert(0, action));
    assert_eq!(
        also_first(1, send(Pass::Forward, 0, 0)),
        (1, "the activation of 0.0 does not go to 0".into())
    );
    assert_eq!(
        also_first(0, receive(Pass::Forward, 0, 1)),
        (0, "the activation for 0.0 does not come from 1".into())
    );
    assert_eq!(
        also_first(0, Forward(StageTask { chunk: 1, micro_batch: 0 })).1,
        "there is no task 0.1 (micro-batch.chunk): 2 micro-batches, 1 chunks"
    );
    assert_eq!(
        also_first(0, Backward(StageTask { chunk: 7, micro_batch: 0 })).1,
        "there is no task 0.7 (micro-batch.chunk): 2 micro-batches, 1 chunks"
    );
    let error = Pipeline::from_actions(Placement::Loop, 2, 1, 2, vec![Vec::new()]).unwrap_err();
    assert_eq!(error.to_string(), "the schedule of pipeline rank 1 is wrong: there are 1 lists for 2 ranks");
}

#[test]
fn too_many_receives_ahead_are_found() {
    let lists = |batches: usize| {
        let all = 0..batches;
        let first = all.clone().flat_map(|batch| [Forward(task(batch)), send(Pass::Forward, batch, 1)]);
        let posted = all.clone().map(|batch| receive(Pass::Forward, batch, 0));
        let second = posted.chain(all.map(|batch| Forward(task(batch))));
        vec![first.collect(), second.collect()]
    };
    let most = Pipeline::MAX_POSTED;
    assert!(Pipeline::from_actions(Placement::Loop, 2, 1, most, lists(most)).is_ok());
    let error = Pipeline::from_actions(Placement::Loop, 2, 1, most + 1, lists(most + 1)).unwrap_err();
    assert!(
        error.to_string().contains("receive activation 4.0 from 0 is posted with 4 others unused"),
        "{error}"
    );
}

/// The weights' halves fill what is idle in 1F1B: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", ZB-H1.
fn zero_bubble() -> Vec<Vec<Action>> {
    let (activation, gradient) = (Pass::Forward, Pass::Backward);
    let first = vec![
        Forward(task(0)),
        send(activation, 0, 1),
        receive(gradient, 0, 1),
        Forward(task(1)),
        send(activation, 1, 1),
        receive(gradient, 1, 1),
        BackwardInput(task(0)),
        BackwardWeights(task(0)),
        BackwardInput(task(1)),
        BackwardWeights(task(1)),
        Reduce { chunk: 0 },
    ];
    let second = vec![
        receive(activation, 0, 0),
        receive(activation, 1, 0),
        Forward(task(0)),
        BackwardInput(task(0)),
        send(gradient, 0, 0),
        Forward(task(1)),
        BackwardInput(task(1)),
        send(gradient, 1, 0),
        BackwardWeights(task(0)),
        BackwardWeights(task(1)),
        Reduce { chunk: 0 },
    ];
    vec![first, second]
}

#[test]
fn a_backward_in_two_halves_is_measured() {
    let pipeline = Pipeline::from_actions(Placement::Loop, 2, 1, 2, zero_bubble()).unwrap();
    let plain = Pipeline::new(PipelineScheduleKind::OneFOneB, 2, 1, 2).unwrap();
    assert!(pipeline.bubble_fraction(2.0).unwrap() < plain.bubble_fraction(2.0).unwrap());
    // One unit at the end of the first rank's warm-up, one before the second rank starts: of 2 x 7.
    assert!((pipeline.bubble_fraction(2.0).unwrap() - 2.0 / 14.0).abs() < 1e-12);
    // Activations are kept for the weights' half.
    assert_eq!((pipeline.peak_in_flight(0), pipeline.peak_in_flight(1)), (2, 2));
}

#[test]
fn a_wrong_half_is_found() {
    let changed = |change: fn(&mut Vec<Action>)| {
        let mut lists = zero_bubble();
        change(&mut lists[1]);
        Pipeline::from_actions(Placement::Loop, 2, 1, 2, lists).unwrap_err().to_string()
    };
    let error = changed(|list| list.swap(3, 8));
    assert!(error.ends_with("backward-weights 0.0 comes before its first half"), "{error}");
    let error = changed(|list| list.swap(8, 9));
    assert!(error.ends_with("backward-weights 1.0 comes when it is the turn of micro-batch 0"), "{error}");
    let error = changed(|list| {
        list.swap(3, 6);
        list.swap(2, 5);
    });
    assert!(error.ends_with("backward-input 1.0 comes when it is the turn of micro-batch 0"), "{error}");
    let error = changed(|list| {
        list.truncate(8);
    });
    assert!(error.ends_with("the second half of backward 0.0 is missing"), "{error}");
}

#[test]
fn parameters_are_gathered_for_the_first_half_alone() {
    let plain = Pipeline::new(PipelineScheduleKind::OneFOneB, 2, 1, 2).unwrap();
    let halves = |action: &Action| match *action {
        Backward(task) => vec![BackwardInput(task), BackwardWeights(task)],
        other => vec![other],
    };
    let rank = |rank| {
        let mut list: Vec<Action> = plain.actions(rank).iter().flat_map(halves).collect();
        // The message leaves before the second half.
        for at in 1..list.len() {
            if matches!((list[at - 1], list[at]), (BackwardWeights(_), Send { .. })) {
                list.swap(at - 1, at);
            }
        }
        list
    };
    let split = Pipeline::from_actions(Placement::Loop, 2, 1, 2, vec![rank(0), rank(1)]).unwrap();
    let units: Vec<Vec<usize>> = (0..5).map(|block| vec![block % 3]).collect();
    for policy in [
        ReshardPolicy::AfterUse,
        ReshardPolicy::AfterUseUnlessNext,
        ReshardPolicy::AfterBackward,
        ReshardPolicy::AfterStep,
    ] {
        for rank in 0..2 {
            let stage = Stage::new(Placement::Loop, rank, 2, &[2, 3]);
            let plan = |pipeline| StageSchedule::new(&stage, pipeline, &units, policy, 1).unshard_plan;
            assert_eq!(plan(&split), plan(&plain), "{policy:?}");
        }
    }
}
