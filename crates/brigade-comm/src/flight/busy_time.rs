//! How long operations were under way.

/// The union of intervals that overlap: the time in which at least one was open, in microseconds since the world began.
#[derive(Debug, Default)]
pub struct BusyTime {
    open: usize,
    /// When the first of the open ones began.
    since: u64,
    closed: u64,
}

impl BusyTime {
    /// An interval begins.
    pub fn begin(&mut self, now: u64) {
        if self.open == 0 {
            self.since = now;
        }
        self.open += 1;
    }

    /// An interval ends.
    pub fn end(&mut self, now: u64) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.closed += now.saturating_sub(self.since);
        }
    }

    /// The time until now.
    pub fn until(&self, now: u64) -> u64 {
        let open = if self.open > 0 { now.saturating_sub(self.since) } else { 0 };
        self.closed + open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        let mut busy = BusyTime::default();
        busy.begin(10);
        busy.begin(15);
        assert_eq!(busy.until(18), 8);
        busy.end(20);
        assert_eq!(busy.until(22), 12);
        busy.end(30);
        assert_eq!([30, 99].map(|now| busy.until(now)), [20, 20]);
        busy.begin(100);
        busy.end(101);
        assert_eq!(busy.until(200), 21);
    }
}
