//! Models against `transformers`: the fixtures hold configurations, weights, logits, losses, gradients and trained weights that `fixtures/make_decoders.py`,
//! `fixtures/make_encoders.py` and `fixtures/make_classifiers.py` computed.

#![allow(clippy::unwrap_used)]

#[path = "../cached/mod.rs"]
mod cached;
mod classifiers;
mod decoders;
mod encoders;
mod reference;
