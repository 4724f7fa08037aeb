//! An ordered parallel map on threads of our own.

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// Threads that work on one list of items at a time. They are a pool of their own, so that the number of threads that was
/// asked for is kept, and what others do on the process's global pool neither waits for this work nor delays it.
pub(crate) struct Workers {
    pool: ThreadPool,
}

impl Workers {
    /// Starts `threads` threads; 0 means one for each core.
    pub(crate) fn start(threads: usize) -> Result<Self> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            threads => threads,
        };
        let named =
            ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("prepare-{index}"));
        match named.build() {
            Ok(pool) => Ok(Self { pool }),
            Err(error) => {
                Err(Error::io("start threads for", "the preparation of data", std::io::Error::other(error)))
            }
        }
    }

    /// How many threads there are.
    pub(crate) fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// `work(item)` for every item; the results have the order of the items.
    pub(crate) fn map<T: Sync, R: Send>(&self, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
        self.pool.install(|| items.par_iter().with_max_len(1).map(&work).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let doubled = Workers::start(3).unwrap().map(&items, |item| item * 2);
        assert_eq!(doubled, (0..1000).map(|item| item * 2).collect::<Vec<u64>>());
    }

    #[test]
    fn as_many_threads_work_as_were_asked_for() {
        let (all, threads) = (Barrier::new(3), Mutex::new(HashSet::new()));
        // Each item waits until all are being worked on.
        Workers::start(3).unwrap().map(&[(); 3], |()| {
            all.wait();
            threads.lock().unwrap().insert(std::thread::current().id());
        });
        assert_eq!(threads.into_inner().unwrap().len(), 3);
    }
}
