//! The thread that advances the engine's epoch while guests run, and sleeps while none does.
//!
//! An OS thread, because a timer of any async runtime could wait behind the very guest it should stop.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wasmtime::Engine;

/// Held while a call runs.
pub(crate) struct Running<'a>(&'a Ticker);

pub(crate) struct Ticker(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    asleep: bool,
    closed: bool,
}

impl Ticker {
    pub(crate) fn start(engine: &Engine, every: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        let (of_thread, engine) = (Arc::clone(&shared), engine.weak());
        std::thread::Builder::new()
            .name("plugin-ticker".into())
            .spawn(move || {
                while of_thread.wait_for_work() {
                    std::thread::sleep(every);
                    match engine.upgrade() {
                        Some(engine) => engine.increment_epoch(),
                        None => break,
                    }
                }
            })?;
        Ok(Self(shared))
    }

    /// Tick until the guard is dropped.
    pub(crate) fn running(&self) -> Running<'_> {
        let mut state = self.0.lock();
        state.running += 1;
        if state.asleep {
            self.0.wake.notify_one();
        }
        Running(self)
    }
}

impl Shared {
    /// Wait until a guest runs; `false` once the ticker is dropped.
    fn wait_for_work(&self) -> bool {
        let mut state = self.lock();
        while state.running == 0 && !state.closed {
            state.asleep = true;
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.asleep = false;
        !state.closed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.lock().running -= 1;
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_one();
    }
}
