//! Numbers on devices: one trait, [`Ops`], with every operation the model and the optimizer need, and one
//! folder an operation.
//!
//! It knows no layer, no model and no file; those are slime-model's. Read [`ops`] first, then any folder:
//! its `mod.rs` gives formula, shapes and cost, its `cpu.rs` is the definition of correct.

pub mod comm;
pub mod cpu;
pub mod cuda;
pub mod error;
pub mod ops;
pub mod shapes;

mod adamw;
mod attend_keys;
mod attention;
mod causal_conv;
mod check;
mod columns;
mod draw;
mod embedding;
mod gate;
mod gated_delta;
mod grouped_matmul;
mod head;
mod head_matmul;
mod matmul;
mod paged_attention;
mod pieces;
mod qk_norm_rope;
mod rmsnorm;
mod rows;
mod swiglu;

pub use comm::{Comm, Reduce};
pub use cpu::{Cpu, CpuFloat, CpuIds, CpuTensor};
pub use error::{Error, Result};
pub use ops::{
    AdamW, ColumnMap, DeltaHeads, DeltaRule, Draw, Drawn, HeadParts, Heads, KeySpan, Later,
    NO_TARGET, Norms, Ops, PagedSequence, Patch, Replay, RopeStyle, RopeTable, Route, Sequences,
    TokenStats, Update,
};
pub use paged_attention::cpu::{CpuKvCache, CpuTables};
