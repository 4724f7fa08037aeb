//! How large the rings of a link are.

/// Bytes of a stream that can be on their way between two ranks of one host, in small groups: the size of a ring, and by how
/// much ranks on TCP run ahead of each other. Small enough that the rings of a few peers stay in a core's second-level cache.
pub(crate) const RING_BYTES: usize = 256 << 10;

/// The rings of all links of a rank in one direction together, in larger groups.
pub(crate) const ALL_RINGS_BYTES: usize = 16 << 20;

/// Bytes of a ring in a group of `members` ranks: the same power of two on all of them.
pub(crate) fn ring_bytes(members: usize) -> usize {
    let share = ALL_RINGS_BYTES / members.max(1);
    (1 << share.max(1).ilog2()).clamp(PUBLISH_BYTES / 2, RING_BYTES)
}

/// Bytes after which a long write or read tells the peer what it has done so far, so that both copy at once.
pub(crate) const PUBLISH_BYTES: usize = 32 << 10;
