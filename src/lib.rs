//! Distributed training for Burn.
