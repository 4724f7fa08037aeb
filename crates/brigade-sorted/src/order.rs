//! Searching and sorting, for entries of any type.

use std::cmp::Ordering;

/// Where a key is among `len` ascending ones, or where it would have to be inserted. `compare` says how the key at a place compares
/// with the wanted one.
pub fn search(len: usize, compare: &dyn Fn(usize) -> Ordering) -> Result<usize, usize> {
    // Most keys come in order.
    if len == 0 || compare(len - 1) == Ordering::Less {
        return Err(len);
    }
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        match compare(middle) {
            Ordering::Less => low = middle + 1,
            Ordering::Equal => return Ok(middle),
            Ordering::Greater => high = middle,
        }
    }
    Err(low)
}

/// What makes the keys of entries ascend, each of them once.
pub struct Sorting {
    /// Entries to swap, one pair after the other.
    pub swaps: Vec<(usize, usize)>,
    /// How many entries stay; those after them had a key that came again later.
    pub kept: usize,
}

/// How to sort `len` entries whose keys `compare` compares by their places.
pub fn sorting(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Sorting {
    if (1..len).all(|place| compare(place - 1, place) == Ordering::Less) {
        return Sorting { swaps: Vec::new(), kept: len };
    }
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|&a, &b| compare(a, b));
    let mut kept = Vec::with_capacity(len);
    let mut superseded = Vec::new();
    for (place, &entry) in order.iter().enumerate() {
        let again = order.get(place + 1).is_some_and(|&next| compare(entry, next) == Ordering::Equal);
        if again { superseded.push(entry) } else { kept.push(entry) }
    }
    let count = kept.len();
    kept.append(&mut superseded);
    Sorting { swaps: swaps(&kept), kept: count }
}

/// The swaps after which place `i` holds what was at `order[i]`.
fn swaps(order: &[usize]) -> Vec<(usize, usize)> {
    let mut entry_at: Vec<usize> = (0..order.len()).collect();
    let mut place_of = entry_at.clone();
    let mut swaps = Vec::new();
    for (place, &entry) in order.iter().enumerate() {
        let from = place_of[entry];
        if from != place {
            let moved = entry_at[place];
            (entry_at[from], place_of[moved]) = (moved, from);
            swaps.push((place, from));
        }
    }
    swaps
}
