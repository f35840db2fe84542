//! Columns moved, repeated and added: what splits projections, packs heads and shares a key among them.
//!
//! - Formula: `y_c = Σ_s x_s` over the sources of output column `c` ([`ColumnMap`](crate::ColumnMap)); the backward is
//!   the transposed map.
//! - Shapes: any number of `x: [rows, cols]` side by side, `y: [rows, outputs]`.
//! - Bytes: every input once, the output once.
//! - FLOPs: one addition for each source beyond the first.
//! - Roofline: memory.

pub(crate) mod cpu;
