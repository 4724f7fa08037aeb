//! Putting pieces into rows without cutting them.

use std::collections::BTreeSet;

/// Which row each piece is put into, by best-fit decreasing: the longest piece first, each into the fullest row that has room for it.
/// `sizes` are at most `capacity`. Rows are numbered from 0 in the order of their first pieces.
///
/// Johnson, Demers, Ullman, Garey and Graham, "Worst-case performance bounds for simple one-dimensional packing algorithms", 1974.
pub(super) fn best_fit_decreasing(sizes: &[u32], capacity: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
    order.sort_by_key(|&piece| std::cmp::Reverse(sizes[piece as usize]));
    // Rows by the room that is left in them, and the rooms of which there are rows.
    let (mut by_room, mut rooms) = (vec![Vec::<u32>::new(); capacity + 1], BTreeSet::<usize>::new());
    let (mut row_of, mut rows) = (vec![0; sizes.len()], 0);
    for piece in order {
        let size = sizes[piece as usize] as usize;
        let fitting = rooms.range(size..).next().copied();
        let (row, room) = match fitting.and_then(|room| Some((by_room[room].pop()?, room))) {
            Some(found) => found,
            None => {
                rows += 1;
                (rows - 1, capacity)
            }
        };
        if by_room[room].is_empty() {
            rooms.remove(&room);
        }
        by_room[room - size].push(row);
        rooms.insert(room - size);
        row_of[piece as usize] = row;
    }
    in_order_of_first_pieces(row_of, rows as usize)
}

/// The same with other numbers of rows.
fn in_order_of_first_pieces(mut row_of: Vec<u32>, rows: usize) -> Vec<u32> {
    let (mut number, mut next) = (vec![u32::MAX; rows], 0);
    for row in &mut row_of {
        let new = &mut number[*row as usize];
        if *new == u32::MAX {
            *new = next;
            next += 1;
        }
        *row = *new;
    }
    row_of
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_piece_goes_into_the_fullest_row_with_room() {
        // 6 beside 4 leaves no room, 5 beside 3 and 1 a little.
        assert_eq!(best_fit_decreasing(&[3, 6, 1, 5, 4], 10), [0, 1, 0, 0, 1]);
        assert_eq!(best_fit_decreasing(&[10, 10, 1], 10), [0, 1, 2]);
        assert!(best_fit_decreasing(&[], 4).is_empty());
    }

    proptest! {
        #[test]
        fn rows_are_not_overfull_and_nearly_as_few_as_possible(
            sizes in prop::collection::vec(1u32..=50, 0..200),
        ) {
            let row_of = best_fit_decreasing(&sizes, 50);
            let rows = row_of.iter().max().map_or(0, |last| *last as usize + 1);
            let mut filled = vec![0; rows];
            for (row, size) in row_of.iter().zip(&sizes) {
                filled[*row as usize] += size;
            }
            prop_assert!(filled.iter().all(|size| (1..=50).contains(size)));
            // No row is less than half full but one.
            prop_assert!(filled.iter().filter(|size| **size < 25).count() <= 1);
            let mut seen = 0;
            for row in &row_of {
                prop_assert!(*row as usize <= seen);
                seen = seen.max(*row as usize + 1);
            }
        }
    }
}
