//! The starts and restarts of a world on several nodes, whose launchers agree on each of them.

mod assembly;
mod for_nodes;
mod leaving;
mod node;

pub use self::node::run;
