//! The levels along which the ranks of a group communicate.

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

/// One level: `count` ranks at a distance of `step` each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) step: usize,
    pub(super) count: usize,
}

impl Level {
    /// The ranks that a rank communicates with on this level, itself among them.
    pub(super) fn members(self, rank: usize) -> Members {
        let Self { step, count } = self;
        Members { first: rank - self.place(rank) * step, step, count }
    }

    /// A rank's place on this level.
    pub(super) fn place(self, rank: usize) -> usize {
        rank / self.step % self.count
    }
}

/// The levels of a group, from neighbours to the most distant ranks. A rank is the number that its places on them form, as digits
/// do. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Levels(Vec<Level>);

impl Levels {
    /// Levels of this many ranks each; their product is the number of ranks.
    fn of(counts: impl IntoIterator<Item = usize>) -> Self {
        let mut levels = Vec::new();
        let mut step = 1;
        for count in counts.into_iter().filter(|count| *count > 1) {
            levels.push(Level { step, count });
            step *= count;
        }
        if levels.is_empty() {
            levels.push(Level { step: 1, count: 1 });
        }
        Self(levels)
    }

    /// Everybody talks to everybody.
    pub(super) fn direct(ranks: usize) -> Self {
        Self::of([ranks])
    }

    /// Everybody talks to everybody in a small group. A large one is a grid, if it has one: rows and columns in which each rank
    /// has the fewest peers.
    pub(super) fn flat(ranks: usize) -> Self {
        Self::of(flat(ranks))
    }

    /// Two levels, inside hosts of this many neighbours each and between them; large ones of either are grids again.
    pub(super) fn hierarchical(ranks: usize, per_host: usize) -> Self {
        Self::of(flat(per_host).into_iter().chain(flat(ranks / per_host)))
    }

    /// Pairs, pairs of pairs and so on, as far as two divides the ranks.
    pub(super) fn halving(ranks: usize) -> Self {
        let pairs = ranks.max(1).trailing_zeros() as usize;
        Self::of(std::iter::repeat_n(2, pairs).chain([ranks >> pairs]))
    }

    pub(super) fn each(&self) -> impl DoubleEndedIterator<Item = Level> + '_ {
        self.0.iter().copied()
    }

    /// The last level, and those before it.
    pub(super) fn split_last(&self) -> (Level, &[Level]) {
        let last = self.0.len() - 1;
        (self.0[last], &self.0[..last])
    }

    /// The most ranks on a level after the first; 0 if there is one level.
    pub(super) fn largest_after_first(&self) -> usize {
        self.0[1..].iter().map(|level| level.count).max().unwrap_or(0)
    }
}

/// The rows and columns of this many ranks, neighbours in columns of a power of two.
fn flat(ranks: usize) -> Vec<usize> {
    let widths = (1..=ranks.trailing_zeros()).map(|power| 1 << power);
    let grids =
        widths.map(|columns| [columns, ranks / columns]).filter(|[_, rows]| ranks > DIRECT && *rows > 1);
    match grids.min_by_key(|[columns, rows]| columns + rows) {
        Some(grid) => grid.to_vec(),
        None => vec![ranks],
    }
}
