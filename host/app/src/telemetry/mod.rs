//! What a run tells: numbers in `metrics.jsonl` and `tensorboard/`, spans in `trace.json`, a page in `report.svg`,
//! lines on the console.
//!
//! It measures nothing itself and decides nothing. Read `metrics` first: everything else is made from its rows.

pub mod console;
pub mod logs;
pub mod metrics;
pub mod report;
pub mod tensorboard;
pub mod trace;

pub use console::Console;
pub use metrics::{Metrics, Row};
pub use tensorboard::TensorBoard;
pub use trace::Trace;

use std::io;
use std::path::Path;

/// The files of one run, written together.
pub struct Telemetry {
    axis: &'static str,
    metrics: Metrics,
    board: TensorBoard,
}

impl Telemetry {
    /// The TensorBoard directory in a run's directory.
    pub const BOARD: &str = "tensorboard";

    /// Open every file of `dir`. `resume_at` is the first step that will be written (again).
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn open(
        dir: &Path,
        axis: &'static str,
        trace: &Trace,
        resume_at: Option<u64>,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        trace.open(dir, resume_at.is_some())?;
        Ok(Self {
            axis,
            metrics: Metrics::open(dir, axis, resume_at)?,
            board: TensorBoard::create(&dir.join(Self::BOARD), resume_at)?,
        })
    }

    /// Write one step's numbers.
    ///
    /// # Errors
    /// The disk refused.
    pub fn record(&mut self, row: &Row) -> io::Result<()> {
        self.metrics.write(row)?;
        let step = row.get(self.axis).unwrap_or_default() as u64;
        self.board
            .write(step, row.numbers().filter(|(name, _)| *name != self.axis))
    }
}
