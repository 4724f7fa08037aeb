//! The errors of this crate.

use std::fmt;

use brigade_plan::SplitError;

/// An error of another layer, such as a transport, passed through unchanged.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of preparing or training a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A collective failed; the source names operation, group, sequence and peer.
    #[error("{0}")]
    Collective(#[source] BoxError),
    /// A tensor could not be read from or written to its device.
    #[error("cannot move a tensor between device and host: {0}")]
    Device(String),
    /// A block's input does not have its input type.
    #[error("block `{block}` expects {expected} as its input, but was given {given}")]
    Activation {
        /// Name of the block.
        block: String,
        /// The block's input type.
        expected: String,
        /// The input.
        given: String,
    },
    /// The values of a parameter cannot be loaded.
    #[error("{0}")]
    Load(#[source] BoxError),
    /// The list of blocks, or a tie between them, is not valid, as every rank finds before training begins.
    #[error("{0}")]
    Blocks(String),
    /// The model cannot be trained.
    #[error("{0}")]
    Model(String),
    /// State cannot be saved or restored.
    #[error("{0}")]
    State(String),
    /// A setting is out of its range.
    #[error("{option} = {given} is not possible: {allowed}")]
    Setting {
        /// Full name of the option.
        option: &'static str,
        /// The value that was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// The global batch, or a worker's part of it, has no valid target, so there is nothing to learn from.
    #[error(
        "step {step}: {} holds no valid target (all are masked); train.on_nonfinite = \"skip\" leaves such steps out, and with a \
        larger train.global_batch_size there are fewer",
        batch_of(*.worker)
    )]
    NoTargets {
        /// The step, counted from 1.
        step: u64,
        /// The worker, where there are several that make updates of their own.
        worker: Option<usize>,
    },
    /// A target's weight is invalid.
    #[error(
        "step {step}: a target of the global batch has a weight that is negative or not finite; weights must be numbers of at \
        least 0"
    )]
    TargetWeights {
        /// The step, counted from 1.
        step: u64,
    },
    /// The loss or the gradient norm is not finite; the optimizer has not touched the weights.
    #[error(
        "step {step}: {what} is not finite ({value}): {location}; the weights are those of the step before"
    )]
    NonFinite {
        /// The step, counted from 1.
        step: u64,
        /// `the loss` or `the gradient norm`.
        what: &'static str,
        /// The value.
        value: f64,
        /// Where it was first seen.
        location: NonFiniteLocation,
    },
    /// An error that the ranks of one worker found together, and those of the others do not know of.
    #[error("{0}")]
    OfOneWorker(#[source] Box<Error>),
}

/// What a worker takes its micro-batches from.
fn batch_of(worker: Option<usize>) -> String {
    worker.map_or("the global batch".into(), |worker| format!("worker {worker}'s part of the global batch"))
}

/// The first place, in the order of ranks, micro-batches and the pass through the blocks, where a
/// value was not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFiniteLocation {
    /// The rank; `None` if no rank's own values of this step are other than finite.
    pub rank: Option<usize>,
    /// Whether the gradients are those of this step alone, so that only their sum can be other than finite where no rank is named.
    pub one_step: bool,
    /// How many ranks there are.
    pub ranks: usize,
    /// The rank's micro-batch, counted from 0.
    pub micro_batch: usize,
    /// Name of the block.
    pub block: String,
    /// `output` in the forward pass, `loss`, or `gradient` in the backward pass.
    pub place: &'static str,
}

impl fmt::Display for NonFiniteLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(
                f,
                "first seen on rank {rank}, micro-batch {}, in the {} of block `{}`",
                self.micro_batch, self.place, self.block
            ),
            None if self.one_step => {
                let over = if self.ranks > 1 { "micro-batches or ranks" } else { "micro-batches" };
                write!(
                    f,
                    "every value of every micro-batch is finite: the sum over {over}, the squares for the norm (of gradients above \
                    1.8e19), or a gradient hook overflows"
                )
            }
            None => write!(f, "not in this step, but in an earlier one of this update, or in their sum"),
        }
    }
}

impl From<SplitError> for Error {
    fn from(SplitError { option, given, allowed }: SplitError) -> Self {
        Self::Setting { option, given, allowed }
    }
}

impl Error {
    /// Whether every rank of the group ends with the same error at the same point, because it was decided from values that all of
    /// them have.
    pub fn is_agreed(&self) -> bool {
        matches!(
            self,
            Self::Blocks(_)
                | Self::NoTargets { .. }
                | Self::TargetWeights { .. }
                | Self::NonFinite { .. }
                | Self::Setting { .. }
        )
    }

    /// The same error where it is one of the ranks of a single worker alone: not agreed.
    pub(crate) fn of_one_worker(self) -> Self {
        if self.is_agreed() { Self::OfOneWorker(Box::new(self)) } else { self }
    }

    /// Wraps an error of a collective.
    pub fn collective(error: impl Into<BoxError>) -> Self {
        Self::Collective(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_norm_that_overflows_alone_names_what_may_have_overflowed() {
        let said = |ranks| {
            let (block, place) = (String::new(), "gradient");
            let location =
                NonFiniteLocation { rank: None, one_step: true, ranks, micro_batch: 0, block, place };
            location.to_string()
        };
        assert!(said(1).contains("the sum over micro-batches, the squares for the norm"), "{}", said(1));
        assert!(said(2).contains("the sum over micro-batches or ranks, the squares"), "{}", said(2));
    }

    #[test]
    fn an_error_of_one_worker_says_the_same_and_is_not_agreed() {
        for worker in [None, Some(1)] {
            let error = Error::NoTargets { step: 3, worker };
            let said = error.to_string();
            let batch =
                if worker.is_some() { "worker 1's part of the global batch" } else { "the global batch" };
            assert!(said.starts_with(&format!("step 3: {batch} holds no valid target")), "{said}");
            assert!(said.contains("train.on_nonfinite = \"skip\""), "{said}");
            assert!(error.is_agreed());
            let error = error.of_one_worker();
            assert!(!error.is_agreed() && error.to_string() == said, "{error}");
        }
        let error = Error::State("gone".into()).of_one_worker();
        assert!(matches!(error, Error::State(_)), "{error}");
    }
}
