//! The numbers by which all members know a group.

/// FNV-1a, continued from `state`: a number for a group that all its members compute alike.
pub(super) fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state ^ 0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
