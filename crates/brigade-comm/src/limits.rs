//! The sizes that every part of this crate keeps to.

/// The largest world that can be made. Its table of addresses fits into a message, and a rank that talks to all others
/// needs fewer open files and less memory than systems allow.
pub const MAX_WORLD_SIZE: usize = 1024;

/// The longest control message that is accepted, in bytes.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// The allowed sizes of a world, for error messages about one that is not.
pub fn allowed_world_size() -> String {
    format!("a world has 1 to {MAX_WORLD_SIZE} ranks")
}
