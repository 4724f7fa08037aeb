//! The grid that the ranks of a large group form.

/// The largest group in which everybody talks to everybody in every collective. Part of the protocol.
const DIRECT: usize = 32;

/// Ranks of the group, in order and at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) first: usize,
    pub(super) step: usize,
    pub(super) count: usize,
}

impl Members {
    pub(super) fn ranks(self) -> impl DoubleEndedIterator<Item = usize> + Clone {
        (0..self.count).map(move |index| self.first + index * self.step)
    }

    /// The place of a rank among them.
    pub(super) fn place(self, rank: usize) -> Option<usize> {
        let distance = rank.checked_sub(self.first)?;
        (distance.is_multiple_of(self.step) && distance / self.step < self.count)
            .then(|| distance / self.step)
    }
}

/// A group of `rows` times `columns` ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Grid {
    /// The grid of a group in which each rank has the fewest peers, if it is large enough and has one.
    pub(super) fn of(ranks: usize) -> Option<Self> {
        let widths = (1..=ranks.trailing_zeros()).map(|power| 1 << power);
        let grids = widths.map(|columns| Self { rows: ranks / columns, columns });
        grids.filter(|grid| ranks > DIRECT && grid.rows > 1).min_by_key(|grid| grid.rows + grid.columns)
    }

    pub(super) fn row(self, rank: usize) -> Members {
        Members { first: rank - rank % self.columns, step: 1, count: self.columns }
    }

    pub(super) fn column(self, rank: usize) -> Members {
        Members { first: rank % self.columns, step: self.columns, count: self.rows }
    }
}
