//! Time of each launch on the device, by name: two events a launch, read when everything is done.
//!
//! Off unless asked for; it orders nothing and changes no result.

use super::driver;
use crate::Result;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A name, its number of launches, and their milliseconds.
pub type Span = (String, usize, f64);

#[derive(Default)]
pub(super) struct Profile(Mutex<Option<Vec<(String, CudaEvent, CudaEvent)>>>);

impl Profile {
    /// From now on, keeping what was noted, or no longer, dropping it.
    pub(super) fn set(&self, on: bool) {
        let mut spans = self.0.lock().unwrap_or_else(|e| e.into_inner());
        *spans = if on {
            Some(spans.take().unwrap_or_default())
        } else {
            None
        };
    }

    pub(super) fn begin(&self, stream: &Arc<CudaStream>) -> Result<Option<CudaEvent>> {
        let spans = self.0.lock().unwrap_or_else(|e| e.into_inner());
        spans.as_ref().map(|_| mark(stream)).transpose()
    }

    pub(super) fn end(
        &self,
        stream: &Arc<CudaStream>,
        begin: Option<CudaEvent>,
        name: impl FnOnce() -> String,
    ) -> Result<()> {
        let mut spans = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let (Some(spans), Some(begin)) = (spans.as_mut(), begin) {
            spans.push((name(), begin, mark(stream)?));
        }
        Ok(())
    }

    /// What was noted, the longest first, and stop.
    pub(super) fn take(&self) -> Result<Vec<Span>> {
        let spans = self
            .0
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .take()
            .unwrap_or_default();
        let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        for (name, begin, end) in spans {
            let sum = sums.entry(name).or_default();
            sum.0 += 1;
            sum.1 += f64::from(begin.elapsed_ms(&end).map_err(driver)?);
        }
        let mut list: Vec<Span> = sums
            .into_iter()
            .map(|(name, (count, ms))| (name, count, ms))
            .collect();
        list.sort_by(|a, b| b.2.total_cmp(&a.2));
        Ok(list)
    }
}

fn mark(stream: &Arc<CudaStream>) -> Result<CudaEvent> {
    stream
        .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
        .map_err(driver)
}
