//! An ordered parallel map.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of threads that `requested` stands for: 0 means one a core.
pub(crate) fn thread_count(requested: usize) -> usize {
    match requested {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
        threads => threads,
    }
}

/// `work(worker, item)` for every item, one thread per worker; the results stand in the order of the items.
///
/// A worker is state that one thread keeps from item to item, such as a cache.
pub(crate) fn ordered_map<W: Send, T: Sync, R: Send>(
    workers: &mut [W],
    items: &[T],
    work: impl Fn(&mut W, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for worker in workers.iter_mut().take(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(worker, item);
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let mut calls = [0u64; 3];
        let doubled = ordered_map(&mut calls, &items, |calls, item| {
            *calls += 1;
            item * 2
        });
        assert_eq!(doubled, (0..1000).map(|item| item * 2).collect::<Vec<u64>>());
        assert_eq!(calls.iter().sum::<u64>(), 1000);
    }
}
