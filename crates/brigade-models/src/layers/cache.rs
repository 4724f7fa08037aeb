//! Keys and values of positions that were computed before.

use burn::tensor::Tensor;

/// The positions for which there is room at first.
const LEAST_ROOM: usize = 16;

/// Those of one layer.
#[derive(Default)]
pub(crate) struct KeyValueCache {
    /// `[batch, heads, room, depth]` each; a text that grows token by token is copied only when the room is doubled.
    room: Option<[Tensor<4>; 2]>,
    /// Positions that are in it, from its beginning.
    stored: usize,
    /// Positions that there were in all.
    seen: usize,
}

impl KeyValueCache {
    /// How many positions there were.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Adds keys and values of the next positions, `[batch, heads, positions, depth]` each; gives those of all that may be seen from there. With a window a position sees itself
    /// and this many before that they are `window` together; what no later one sees is dropped when there is no more room.
    pub fn append(&mut self, new: [Tensor<4>; 2], window: Option<usize>) -> [Tensor<4>; 2] {
        let [batch, heads, count, _] = new[0].dims();
        let room = match self.room.take() {
            Some(room) if self.stored + count <= room[0].dims()[2] => room,
            old => self.make_room(old, &new, window),
        };
        let (start, end) = (self.stored, self.stored + count);
        (self.stored, self.seen) = (end, self.seen + count);
        let mut new = new.into_iter();
        let room = room.map(|room| match new.next() {
            Some(new) => room.slice_assign([0..batch, 0..heads, start..end], new),
            None => room,
        });
        let all = room.each_ref().map(|room| room.clone().narrow(2, 0, end));
        self.room = Some(room);
        all
    }

    /// Makes room for at least twice what it will hold, and keeps what can still be seen of the old content.
    fn make_room(
        &mut self,
        old: Option<[Tensor<4>; 2]>,
        new: &[Tensor<4>; 2],
        window: Option<usize>,
    ) -> [Tensor<4>; 2] {
        let kept = window.map_or(self.stored, |window| self.stored.min(window.saturating_sub(1)));
        let dropped = self.stored - kept;
        self.stored = kept;
        let mut old = old.into_iter().flatten();
        new.each_ref().map(|new| {
            let [batch, heads, count, depth] = new.dims();
            let positions = (2 * (kept + count)).max(LEAST_ROOM);
            let room = Tensor::zeros([batch, heads, positions, depth], (&new.device(), new.dtype()));
            match old.next() {
                Some(old) if kept > 0 => {
                    room.slice_assign([0..batch, 0..heads, 0..kept], old.narrow(2, dropped, kept))
                }
                _ => room,
            }
        })
    }
}
