//! What the ranks of a group do together.

mod collectives;
mod messages;
mod process_groups;
