//! Which ranks a new group has. This part of a split communicates by one all-gather and nothing else.

use brigade_random::keyed_bytes;

/// What each rank contributes: its color, its key, and a keyed hash of the name that it gives.
pub(crate) type SplitRow = [i64; 3];

/// What this rank contributes.
pub(crate) fn row(name: &str, color: u32, key: u32) -> SplitRow {
    [color.into(), key.into(), keyed_bytes(0, name.as_bytes()) as i64]
}

/// The ranks of this rank's new group, in their order there, or why there is none. `members` are the world ranks.
pub(crate) fn chosen(
    rows: &[SplitRow],
    rank: usize,
    members: &[usize],
    name: &str,
) -> Result<Vec<usize>, String> {
    let [color, _, hash] = rows[rank];
    let mut chosen: Vec<usize> = (0..rows.len()).filter(|member| rows[*member][0] == color).collect();
    chosen.sort_by_key(|member| (rows[*member][1], *member));
    match chosen.iter().find(|member| rows[**member][2] != hash) {
        None => Ok(chosen),
        Some(other) => Err(format!(
            "split by color {color}: this rank names the group \"{name}\", but rank {} gives another name",
            members[*other]
        )),
    }
}

/// The number of the group that a split makes: the same on all its ranks. `splits` counts those before it.
pub(crate) fn group_number(group: u64, splits: u64, color: u32) -> u64 {
    keyed_bytes(keyed_bytes(group, &splits.to_le_bytes()), &color.to_le_bytes())
}
