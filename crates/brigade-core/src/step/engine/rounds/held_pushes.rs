//! What servers but the first one hold of what workers push, until the first one has counted it.
//!
//! A worker sends each server its shards of a push at once, and may die when only some of them have arrived. What the first server has not
//! counted then goes to another worker as a share, so the other servers must not apply it.

use std::collections::VecDeque;

use brigade_sorted::SortedMap;

/// Pushes by connection, in the order in which they came.
pub(super) struct HeldPushes<P>(SortedMap<u64, Connection<P>>);

struct Connection<P> {
    /// How many the first server has counted since the connection was made, and how many of them were released here.
    counted: u64,
    released: u64,
    held: VecDeque<P>,
}

impl<P> Default for Connection<P> {
    fn default() -> Self {
        Self { counted: 0, released: 0, held: VecDeque::new() }
    }
}

impl<P> Default for HeldPushes<P> {
    fn default() -> Self {
        Self(SortedMap::new())
    }
}

impl<P> HeldPushes<P> {
    /// Takes what was pushed over a connection.
    pub(super) fn hold(&mut self, connection: u64, push: P) {
        self.0.entry(connection).or_default().held.push_back(push);
    }

    /// The first server has counted this many pushes of a connection.
    pub(super) fn count(&mut self, connection: u64, pushes: u64) {
        let of = self.0.entry(connection).or_default();
        of.counted = of.counted.max(pushes);
    }

    /// The first server has counted all that has come over a connection.
    pub(super) fn count_all(&mut self, connection: u64) {
        if let Some(of) = self.0.get_mut(&connection) {
            of.counted = of.counted.max(of.released + of.held.len() as u64);
        }
    }

    /// The next push that has come and was counted.
    pub(super) fn release(&mut self) -> Option<P> {
        let of = self.0.values_mut().find(|of| of.released < of.counted && !of.held.is_empty())?;
        of.released += 1;
        of.held.pop_front()
    }

    /// Whether a push was counted that has not come over this connection.
    pub(super) fn lacks(&self, connection: u64) -> bool {
        self.0.get(&connection).is_some_and(|of| of.released < of.counted)
    }

    /// Forgets other connections, with what was pushed over them.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.0.retain(|connection, _| is_there(*connection));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(pushes: &mut HeldPushes<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| pushes.release()).collect()
    }

    #[test]
    fn a_push_is_released_once_it_is_there_and_counted() {
        let mut pushes = HeldPushes::default();
        pushes.hold(7, "a");
        pushes.hold(7, "b");
        assert_eq!(released(&mut pushes), [""; 0]);
        pushes.count(7, 1);
        assert_eq!(released(&mut pushes), ["a"]);
        // The count comes before the push.
        pushes.count(8, 1);
        assert!(pushes.lacks(8) && !pushes.lacks(7) && released(&mut pushes).is_empty());
        pushes.hold(8, "c");
        assert_eq!((released(&mut pushes), pushes.lacks(8)), (vec!["c"], false));
        pushes.count_all(7);
        assert_eq!(released(&mut pushes), ["b"]);
        // An old count changes nothing.
        pushes.hold(7, "d");
        pushes.count(7, 2);
        assert_eq!(released(&mut pushes), [""; 0]);
        pushes.count(7, 3);
        assert_eq!(released(&mut pushes), ["d"]);
    }

    #[test]
    fn what_a_lost_worker_pushed_is_applied_if_it_was_counted_and_else_forgotten() {
        let mut pushes = HeldPushes::default();
        for connection in [1, 2] {
            pushes.hold(connection, "counted");
            pushes.hold(connection, "not counted");
            pushes.count(connection, 1);
        }
        assert_eq!(released(&mut pushes), ["counted"; 2]);
        pushes.retain(|connection| connection == 2);
        pushes.count_all(1);
        pushes.count_all(2);
        assert_eq!(released(&mut pushes), ["not counted"]);
    }
}
