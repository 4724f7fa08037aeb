//! The sections of a configuration.

pub(crate) mod backend;
pub(crate) mod checkpoint;
pub(crate) mod comm;
pub(crate) mod decay;
pub(crate) mod length;
pub(crate) mod metric_mode;
pub(crate) mod optimizer;
pub(crate) mod output;
pub(crate) mod parallelism;
pub(crate) mod profile;
pub(crate) mod strategy;
