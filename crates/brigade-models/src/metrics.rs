//! Names of metrics that several kinds of models have.

/// The share of masked tokens, or of labels, to which the model gives the highest logit.
pub const ACCURACY: &str = "accuracy";
