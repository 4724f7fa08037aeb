//! Every check of the suite finds what it is for: each fails on collectives that are wrong in its way, and in words that
//! say so.

#![allow(clippy::unwrap_used)]

mod faulty;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use brigade_conformance::{ALL, Check, Suite, on_ranks};
use brigade_host::{HostCollectives, MemorySpace};
use burn::tensor::{Device, FloatDType};
use faulty::{Fault, Faulty};

/// By check, what it finds, and words of what a rank then says.
const FAULTS: &[(&str, Fault, &str)] = &[
    ("a_failure_is_the_end", Fault::AfterFailure, "all_gather_scalars after a failure"),
    ("a_failure_is_the_end", Fault::Barrier, "barrier after a failure"),
    ("all_gather_joins_in_rank_order", Fault::Order, "elements of each rank in F32: element 0 is"),
    ("all_reduce_sums_any_length", Fault::Sum, "of 100001 in F32 on rank"),
    ("all_reduce_sums_any_length", Fault::SumOfOne, "of 100001 in F32 on rank 1"),
    ("all_reduce_sums_any_length", Fault::Short, "a sum's number of elements"),
    ("all_reduce_takes_views", Fault::View, "element 1 of 50 in F32"),
    ("another_length_is_an_error_on_every_rank", Fault::Failure, "on an `Ok` value"),
    ("barriers_wait_for_all", Fault::Barrier, "s before the last came"),
    ("broadcasts_come_from_any_root", Fault::Root, "1 elements of root 1: element 0 is"),
    ("buffers_are_filled_under_their_views", Fault::Refill, "a view of the buffer: element 0 is"),
    ("bytes_reach_their_ranks", Fault::Bytes, "1 bytes of each rank for rank"),
    ("inputs_keep_their_values", Fault::Alias, "a view of the input: element 0 is"),
    ("messages_go_around_a_ring", Fault::Absent, "number of parts"),
    ("operations_are_waited_for_in_any_order", Fault::Turn, "a sum's number of elements"),
    ("other_threads_make_and_take_tensors", Fault::Thread, "element 0: "),
    ("receives_may_be_first", Fault::LastFirst, "left: [2, 12, 3]"),
    ("reduce_scatter_gives_each_its_share", Fault::Share, "of 3 in F32 on rank"),
    ("results_stay_on_the_device", Fault::Place, "autodiff of the result"),
    ("scalars_of_every_rank_reach_all", Fault::Numbers, "numbers of rank"),
    ("traffic_is_counted", Fault::Traffic, "left: (3, "),
    ("two_messages_each_way", Fault::LastFirst, "left: [1000"),
    ("two_messages_each_way", Fault::Rendezvous, "which never receives"),
    ("what_is_dropped_still_happens", Fault::Lazy, "all_gather"),
    ("work_and_collectives_take_turns", Fault::Early, "after round 3: element"),
];

/// What the ranks of three say that fail a check.
fn said(check: Check, fault: Fault) -> Vec<String> {
    let (said, receives) = (Mutex::new(Vec::new()), Arc::default());
    let run = || {
        on_ranks(3, |group| {
            let ranks = HostCollectives::new(group, MemorySpace::Host);
            let ranks = Faulty::new(ranks, fault, Arc::clone(&receives));
            let outcome = catch_unwind(AssertUnwindSafe(|| check(&Suite::new(Device::flex()), &ranks)));
            if let Err(panic) = outcome {
                said.lock().unwrap().push(panic.downcast_ref::<String>().cloned().unwrap_or_default());
                resume_unwind(panic);
            }
        });
    };
    let failed = catch_unwind(AssertUnwindSafe(run)).is_err();
    let said = said.into_inner().unwrap();
    assert_eq!(failed, !said.is_empty());
    said
}

#[test]
fn no_check_finds_what_is_not_there() {
    for (name, check) in ALL {
        assert_eq!(said(*check, Fault::None), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn every_check_finds_what_it_is_for() {
    let mut wrong = Vec::new();
    for (name, check) in ALL {
        let faults: Vec<_> = FAULTS.iter().filter(|(of, ..)| of == name).collect();
        assert!(!faults.is_empty(), "no collectives are there that {name} fails on");
        for (_, fault, words) in faults {
            let said = said(*check, *fault);
            if !said.iter().any(|said| said.contains(words)) {
                wrong.push(format!("{name} with {fault:?}: {said:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// So that checks of all three types run where they are instantiated.
#[test]
fn the_cpu_leaves_no_type_out() {
    let suite = Suite::new(Device::flex()).requiring(&Suite::FLOATS);
    assert_eq!((suite.floats, suite.left_out), (Suite::FLOATS.to_vec(), vec![]));
}

#[test]
#[should_panic = "F64 is required"]
fn what_is_required_and_not_there_is_a_failure() {
    drop(Suite::new(Device::flex()).requiring(&[FloatDType::F16, FloatDType::F64]));
}
