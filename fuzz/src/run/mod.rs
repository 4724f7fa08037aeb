//! Runs a target on many inputs.

pub mod memory;
pub mod report;
mod trial;
pub mod watch;

use std::time::Instant;

use crate::input::Inputs;
use crate::target::Target;
use memory::Used;

pub use trial::{Fault, check};

/// One in this many inputs is sampled for the share that parsed.
const SAMPLED: u64 = 8;

/// How a target's run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Inputs that ran.
    pub inputs: u64,
    /// The share of them that parsed, from one in eight; 0 to 1.
    pub parsed: f64,
    /// How long it took.
    pub seconds: f64,
    /// The most memory that one of them used, in each respect.
    pub used: Used,
    /// The first input that failed; none ran after it.
    pub failure: Option<Failure>,
}

/// An input that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub input: Vec<u8>,
    /// What is wrong.
    pub fault: Fault,
}

/// Runs a target on the inputs 0 to `count`, up to the first that fails. Calls `begin` with each number before it runs.
pub fn run(target: &Target, inputs: &Inputs, count: u64, mut begin: impl FnMut(u64)) -> Outcome {
    let start = Instant::now();
    let (mut parsed, mut sampled, mut ran) = (0u64, 0u64, 0);
    let (mut used, mut failure) = (Used::default(), None);
    for number in 0..count {
        begin(number);
        let input = inputs.get(number);
        ran += 1;
        match check(target, &input) {
            Ok(this) => used = used.max(this),
            Err(fault) => {
                failure = Some(Failure { number, input, fault });
                break;
            }
        }
        if number % SAMPLED == 0 {
            sampled += 1;
            parsed += u64::from((target.parsed)(&input));
        }
    }
    let share = parsed as f64 / sampled.max(1) as f64;
    Outcome { inputs: ran, parsed: share, seconds: start.elapsed().as_secs_f64(), used, failure }
}
