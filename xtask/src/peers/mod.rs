//! What others make of our files, and we of theirs: checks against programs and schemas that the project does not carry.

pub(crate) mod burn_train;
pub(crate) mod hf;
pub(crate) mod manifests;
