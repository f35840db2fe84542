//! Time of each launch on the device, by name or one after the other: two events a launch, read when everything is done.
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

/// One launch.
#[derive(Clone, Debug)]
pub struct Lap {
    /// Of the kernel or the collective.
    pub name: String,
    /// Streams are numbered as they first appear.
    pub stream: usize,
    /// Since the first launch that was noted.
    pub begin_ms: f64,
    /// How long it ran.
    pub ms: f64,
}

struct Noted {
    name: String,
    stream: usize,
    begin: CudaEvent,
    end: CudaEvent,
}

#[derive(Default)]
pub(super) struct Profile(Mutex<Option<Vec<Noted>>>);

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

    pub(super) fn is_on(&self) -> bool {
        let spans = self.0.lock().unwrap_or_else(|e| e.into_inner());
        spans.is_some()
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
            spans.push(Noted {
                name: name(),
                stream: stream.cu_stream() as usize,
                begin,
                end: mark(stream)?,
            });
        }
        Ok(())
    }

    /// What was noted, in the order of launching, and stop.
    pub(super) fn laps(&self) -> Result<Vec<Lap>> {
        let mut spans = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let noted = spans.take().unwrap_or_default();
        let mut streams = Vec::new();
        let mut laps = Vec::with_capacity(noted.len());
        for one in &noted {
            if !streams.contains(&one.stream) {
                streams.push(one.stream);
            }
            let between = |from: &CudaEvent, to| from.elapsed_ms(to).map_err(driver);
            laps.push(Lap {
                name: one.name.clone(),
                stream: streams.iter().position(|s| *s == one.stream).unwrap_or(0),
                begin_ms: f64::from(between(&noted[0].begin, &one.begin)?),
                ms: f64::from(between(&one.begin, &one.end)?),
            });
        }
        Ok(laps)
    }

    /// What was noted by name, the longest first, and stop.
    pub(super) fn take(&self) -> Result<Vec<Span>> {
        let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        for lap in self.laps()? {
            let sum = sums.entry(lap.name).or_default();
            sum.0 += 1;
            sum.1 += lap.ms;
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
