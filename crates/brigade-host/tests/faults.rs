//! The suite of behaviours finds what is wrong: collectives that are right but for one thing.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use brigade_behaviour::{Behaviour, Suite, on_ranks};
use brigade_core::{Collectives, Message, Pending, PendingTensor, PendingValues, Result, Traffic};
use brigade_host::{HostCollectives, Placement};
use burn::tensor::{Device, Tensor};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// One element of long sums is off in its last bit.
    Sum,
    /// Sums have other bits on rank 1.
    SumOfOne,
    /// Rank r gets the share of rank r + 1.
    Share,
    /// Gathered tensors are in reverse order.
    Order,
    /// The root is always rank 0.
    Root,
    /// Absent parts of messages are left out.
    Absent,
    /// Numbers come as fp32.
    Numbers,
    /// Barriers do not wait.
    Barrier,
    /// Failures are forgotten.
    Failure,
}

struct Faulty(HostCollectives, Fault);

impl Collectives for Faulty {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        let (fault, rank, length) = (self.1, self.rank(), tensor.dims()[0]);
        let sum = self.0.all_reduce(tensor.clone());
        Pending::new(move || match fault {
            Fault::Failure => Ok(sum.wait().unwrap_or(tensor)),
            _ => {
                let sum = sum.wait()?;
                let wrong = fault == Fault::Sum || (fault == Fault::SumOfOne && rank == 1);
                Ok(if wrong && length > 1000 { sum * (1.0 + 2f32.powi(-23)) } else { sum })
            }
        })
    }
    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        let share = tensor.dims()[0] / self.size();
        match self.1 {
            Fault::Share => {
                let start = (self.rank() + 1) % self.size() * share;
                let sum = self.0.all_reduce(tensor);
                Pending::new(move || Ok(sum.wait()?.slice(start..start + share)))
            }
            _ => self.0.reduce_scatter(tensor),
        }
    }
    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        let (size, share) = (self.size(), tensor.dims()[0]);
        let all = self.0.all_gather(tensor);
        match self.1 {
            Fault::Order => {
                Pending::new(move || Ok(all.wait()?.reshape([size, share]).flip([0]).reshape([size * share])))
            }
            _ => all,
        }
    }
    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor {
        self.0.broadcast(tensor, if self.1 == Fault::Root { 0 } else { root })
    }
    fn send(&self, mut message: Message, to: usize) -> Pending<()> {
        if self.1 == Fault::Absent {
            message.retain(Option::is_some);
        }
        self.0.send(message, to)
    }
    fn receive(&self, from: usize, device: &Device) -> Pending<Message> {
        self.0.receive(from, device)
    }
    fn exchange(&self, mut values: Vec<f64>) -> PendingValues {
        if self.1 == Fault::Numbers {
            values.iter_mut().for_each(|value| *value = f64::from(*value as f32));
        }
        self.0.exchange(values)
    }
    fn barrier(&self) -> Result<()> {
        if self.1 == Fault::Barrier { Ok(()) } else { self.0.barrier() }
    }
    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

/// Whether a check finds a fault, on three ranks.
fn finds(check: Behaviour, fault: Fault) -> bool {
    let run = || {
        on_ranks(3, |group| {
            let collectives = Faulty(HostCollectives::new(group, Placement::DEVICE), fault);
            check(&Suite::new(Device::flex()), &collectives);
        });
    };
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

#[test]
fn each_fault_is_found_by_the_check_that_is_for_it() {
    use brigade_behaviour as suite;
    let checks: [(Behaviour, &[Fault]); 8] = [
        (suite::all_reduce_sums_any_length, &[Fault::Sum, Fault::SumOfOne]),
        (suite::reduce_scatter_gives_each_its_share, &[Fault::Share]),
        (suite::all_gather_joins_in_rank_order, &[Fault::Order]),
        (suite::broadcasts_come_from_any_root, &[Fault::Root]),
        (suite::messages_go_around_a_ring, &[Fault::Absent]),
        (suite::exchanges_give_every_number_to_all, &[Fault::Numbers]),
        (suite::barriers_wait_for_all, &[Fault::Barrier]),
        (suite::another_length_is_an_error_on_every_rank, &[Fault::Failure]),
    ];
    for (number, (check, faults)) in checks.into_iter().enumerate() {
        assert!(!finds(check, Fault::None), "check {number} without a fault");
        for fault in faults {
            assert!(finds(check, *fault), "check {number} with {fault:?}");
        }
    }
}

/// So that checks of all three types run where they are instantiated.
#[test]
fn the_cpu_computes_in_three_types() {
    assert_eq!(Suite::new(Device::flex()).floats.len(), 3);
}
