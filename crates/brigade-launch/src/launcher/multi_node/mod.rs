//! The starts and restarts of a world on several nodes, whose launchers agree on each of them.

mod assembly;
mod leaving;
mod node;
mod node_count_args;

pub use self::node::run;
