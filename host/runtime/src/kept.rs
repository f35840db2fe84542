//! What `kv` keeps for one plugin: values of the run, and values of the rollouts in flight.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Rollouts whose values are kept; the oldest are forgotten first. More than a run ever has in flight.
const MAX_ROLLOUTS: usize = 8192;

#[derive(Default)]
pub(crate) struct Kept(Mutex<Shelves>);

#[derive(Default)]
struct Shelves {
    run: Shelf,
    rollouts: HashMap<u64, Shelf>,
    /// In order of their first value.
    order: VecDeque<u64>,
}

#[derive(Default)]
struct Shelf {
    values: HashMap<String, Vec<u8>>,
    bytes: u64,
}

impl Kept {
    pub(crate) fn get(&self, rollout: Option<u64>, key: &str) -> Option<Vec<u8>> {
        let shelves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = match rollout {
            None => &shelves.run,
            Some(id) => shelves.rollouts.get(&id)?,
        };
        shelf.values.get(key).cloned()
    }

    /// Keep `value` unless the shelf would then hold more than `most` bytes, keys counted.
    pub(crate) fn set(&self, rollout: Option<u64>, key: String, value: Vec<u8>, most: u64) -> bool {
        let mut shelves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = match rollout {
            None => &mut shelves.run,
            Some(id) => shelves.of(id),
        };
        let weight = |value: &[u8]| (key.len() + value.len()) as u64;
        let before = shelf.values.get(&key).map_or(0, |old| weight(old));
        let bytes = shelf.bytes - before + weight(&value);
        if bytes > most {
            return false;
        }
        shelf.bytes = bytes;
        shelf.values.insert(key, value);
        true
    }

    pub(crate) fn remove(&self, rollout: Option<u64>, key: &str) {
        let mut shelves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = match rollout {
            None => Some(&mut shelves.run),
            Some(id) => shelves.rollouts.get_mut(&id),
        };
        if let Some(shelf) = shelf
            && let Some(old) = shelf.values.remove(key)
        {
            shelf.bytes -= (key.len() + old.len()) as u64;
        }
    }
}

impl Shelves {
    fn of(&mut self, id: u64) -> &mut Shelf {
        if !self.rollouts.contains_key(&id) {
            if self.order.len() >= MAX_ROLLOUTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.rollouts.remove(&oldest);
            }
            self.order.push_back(id);
        }
        self.rollouts.entry(id).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_do_not_meet_and_the_bytes_are_counted_once() {
        let kept = Kept::default();
        assert!(kept.set(None, "k".into(), vec![1; 9], 10));
        assert!(kept.set(Some(7), "k".into(), vec![2; 9], 10));
        assert_eq!(kept.get(None, "k"), Some(vec![1; 9]));
        assert_eq!(kept.get(Some(7), "k"), Some(vec![2; 9]));
        assert_eq!(kept.get(Some(8), "k"), None);
        assert!(!kept.set(None, "other".into(), Vec::new(), 10));
        assert!(
            kept.set(None, "k".into(), vec![3; 9], 10),
            "in place of the old"
        );
        kept.remove(None, "k");
        assert!(kept.set(None, "other".into(), vec![0; 5], 10));
    }

    #[test]
    fn the_oldest_rollouts_are_forgotten() {
        let kept = Kept::default();
        for id in 0..=MAX_ROLLOUTS as u64 {
            kept.set(Some(id), "k".into(), vec![0], 10);
        }
        assert_eq!(kept.get(Some(0), "k"), None);
        assert_eq!(kept.get(Some(1), "k"), Some(vec![0]));
    }
}
