//! The same for many numbers, on all cores of this machine.

use std::sync::atomic::{AtomicUsize, Ordering};

/// `work(0)`, `work(1)`, …, `work(count - 1)`, in that order.
pub(super) fn on_all_cores<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let own = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return done;
            }
            done.push((i, work(i)));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..cores.min(count)).map(|_| scope.spawn(own)).collect();
        let joined = started.into_iter().flat_map(|thread| {
            let done = thread.join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, done)| done).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_their_numbers() {
        let squares = on_all_cores(100, |i| i * i);
        assert!(squares.iter().enumerate().all(|(i, s)| *s == i * i));
        assert_eq!(squares.len(), 100);
        assert!(on_all_cores(0, |i| i).is_empty());
    }
}
