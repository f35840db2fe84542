//! On the CPU, a head at a time.

use crate::cpu::parallel::{self, Disjoint};
use crate::cpu::simd::simd;
use crate::cpu::{Cpu, CpuFloat, CpuIds, CpuTensor, Element};
use crate::rmsnorm::cpu::{add_blocks, norm, norm_backward};
use crate::{Heads, Norms, Result, RopeStyle, RopeTable, check};

use super::{check_rope, pair};

/// Rows whose part of the norms' gradients is summed from 0.
const BLOCK_ROWS: usize = 64;

/// A [`RopeTable`] whose floats are the CPU's.
pub(crate) struct Rope<'a, T: Element> {
    pub(crate) cos: &'a CpuFloat<T>,
    pub(crate) sin: &'a CpuFloat<T>,
    pub(crate) dims: usize,
    pub(crate) style: RopeStyle,
}

impl<'a, T: Element> Rope<'a, T> {
    pub(crate) fn new<O: crate::Ops<Float = CpuFloat<T>>>(table: &'a RopeTable<O>) -> Self {
        Self {
            cos: &table.cos,
            sin: &table.sin,
            dims: table.dims,
            style: table.style,
        }
    }

    fn row(&self, position: u32) -> (&'a [T], &'a [T]) {
        let half = self.dims / 2;
        let at = position as usize * half..(position as usize + 1) * half;
        (&self.cos.data[at.clone()], &self.sin.data[at])
    }

    fn check(&self, op: &'static str, heads: Heads, positions: &CpuIds) -> Result<()> {
        let (cos, sin) = (
            (self.cos.rows, self.cos.cols),
            (self.sin.rows, self.sin.cols),
        );
        check_rope(op, heads, self.dims, cos, sin, &positions.0)
    }
}

/// [`Norms`] of the CPU's tensors.
pub(crate) struct HeadNorms<'a, T: Element> {
    query: &'a CpuTensor<T>,
    key: &'a CpuTensor<T>,
    eps: f64,
}

impl<'a, T: Element> HeadNorms<'a, T> {
    pub(crate) fn new<O: crate::Ops<Tensor = CpuTensor<T>>>(norms: &Norms<'a, O>) -> Self {
        Self {
            query: norms.query,
            key: norms.key,
            eps: norms.eps,
        }
    }

    fn check(&self, op: &'static str, heads: Heads) -> Result<()> {
        check::shape(
            op,
            "the queries' norm",
            (self.query.rows, self.query.cols),
            (1, heads.dim),
        )?;
        check::shape(
            op,
            "the keys' norm",
            (self.key.rows, self.key.cols),
            (1, heads.dim),
        )
    }

    /// The weight of head `h`, queries first.
    fn weight(&self, h: usize, heads: Heads) -> &'a [T] {
        if h < heads.query {
            self.query.data()
        } else {
            self.key.data()
        }
    }
}

pub(crate) fn forward<T: Element>(
    cpu: &Cpu<T>,
    qkv: &CpuTensor<T>,
    heads: Heads,
    positions: &CpuIds,
    rope: &Rope<'_, T>,
    norms: Option<HeadNorms<'_, T>>,
) -> Result<(CpuTensor<T>, Option<CpuFloat<T>>)> {
    let op = "qk_norm_rope";
    check::qkv(op, qkv.cols, heads)?;
    check::ids(op, "positions", positions.0.len(), qkv.rows)?;
    rope.check(op, heads, positions)?;
    if let Some(norms) = &norms {
        norms.check(op, heads)?;
    }
    let (rows, cols, rotating) = (qkv.rows, qkv.cols, heads.query + heads.kv);
    let mut out = cpu.take(rows * cols);
    let mut r = cpu.take(if norms.is_some() { rows * rotating } else { 0 });
    {
        let (out, r) = (Disjoint::new(&mut out), Disjoint::new(&mut r));
        parallel::ranges(rows, parallel::grain_rows(2 * cols), |range| {
            for i in range {
                // SAFETY: every row is written by one task.
                let to = unsafe { out.slice(i * cols..(i + 1) * cols) };
                let from = qkv.row(i);
                let (cos, sin) = rope.row(positions.0[i]);
                match &norms {
                    None => to.copy_from_slice(from),
                    Some(norms) => {
                        // SAFETY: as above.
                        let r = unsafe { r.slice(i * rotating..(i + 1) * rotating) };
                        for h in 0..rotating {
                            let at = h * heads.dim..(h + 1) * heads.dim;
                            r[h] = norm(
                                &from[at.clone()],
                                norms.weight(h, heads),
                                norms.eps,
                                &mut to[at],
                            );
                        }
                        to[rotating * heads.dim..].copy_from_slice(&from[rotating * heads.dim..]);
                    }
                }
                rotate(
                    &mut to[..rotating * heads.dim],
                    heads.dim,
                    cos,
                    sin,
                    rope.style,
                    T::ONE,
                );
            }
        });
    }
    let r = norms.map(|_| CpuFloat::new(rows, rotating, r));
    Ok((CpuTensor::new(rows, cols, out), r))
}

#[allow(
    clippy::too_many_arguments,
    reason = "the operands of one fused backward"
)]
pub(crate) fn backward<T: Element>(
    cpu: &Cpu<T>,
    dqkv: &CpuTensor<T>,
    heads: Heads,
    positions: &CpuIds,
    rope: &Rope<'_, T>,
    norms: Option<(HeadNorms<'_, T>, &CpuTensor<T>, &CpuFloat<T>)>,
    dnorms: Option<(&mut CpuFloat<T>, &mut CpuFloat<T>)>,
) -> Result<CpuTensor<T>> {
    let op = "qk_norm_rope_backward";
    check::qkv(op, dqkv.cols, heads)?;
    check::ids(op, "positions", positions.0.len(), dqkv.rows)?;
    rope.check(op, heads, positions)?;
    let (rows, cols, rotating, dim) = (dqkv.rows, dqkv.cols, heads.query + heads.kv, heads.dim);
    check::that(norms.is_some() == dnorms.is_some(), op, || {
        "norms and their gradients go together".into()
    })?;
    if let (Some((norms, qkv, r)), Some((dquery, dkey))) = (&norms, &dnorms) {
        norms.check(op, heads)?;
        check::same(op, (qkv.rows, qkv.cols), (rows, cols))?;
        check::shape(op, "r", (r.rows, r.cols), (rows, rotating))?;
        check::shape(
            op,
            "the queries' dnorm",
            (dquery.rows, dquery.cols),
            (1, dim),
        )?;
        check::shape(op, "the keys' dnorm", (dkey.rows, dkey.cols), (1, dim))?;
    }
    let blocks = rows.div_ceil(BLOCK_ROWS);
    let part = if norms.is_some() { blocks * dim } else { 0 };
    let (mut out, mut dquery, mut dkey) = (cpu.take(rows * cols), cpu.zeros(part), cpu.zeros(part));
    {
        let (out, dquery, dkey) = (
            Disjoint::new(&mut out),
            Disjoint::new(&mut dquery),
            Disjoint::new(&mut dkey),
        );
        parallel::each(blocks, |block| {
            let mut rotated = cpu.take(rotating * dim);
            for i in block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(rows) {
                // SAFETY: a task owns its block and its rows.
                let to = unsafe { out.slice(i * cols..(i + 1) * cols) };
                let from = dqkv.row(i);
                let (cos, sin) = rope.row(positions.0[i]);
                to[rotating * dim..].copy_from_slice(&from[rotating * dim..]);
                rotated.copy_from_slice(&from[..rotating * dim]);
                rotate(&mut rotated, dim, cos, sin, rope.style, T::ZERO - T::ONE);
                let Some((norms, qkv, r)) = &norms else {
                    to[..rotating * dim].copy_from_slice(&rotated);
                    continue;
                };
                let (x, r) = (qkv.row(i), &r.data[i * rotating..]);
                for h in 0..rotating {
                    let at = h * dim..(h + 1) * dim;
                    let dw = if h < heads.query { &dquery } else { &dkey };
                    // SAFETY: as above; the two gradients are used in turn.
                    let dw = unsafe { dw.slice(block * dim..(block + 1) * dim) };
                    norm_backward(
                        &rotated[at.clone()],
                        &x[at.clone()],
                        r[h],
                        norms.weight(h, heads),
                        None,
                        &mut to[at],
                        dw,
                    );
                }
            }
        });
    }
    if let Some((query, key)) = dnorms {
        add_blocks(&dquery, &mut query.data);
        add_blocks(&dkey, &mut key.data);
    }
    Ok(CpuTensor::new(rows, cols, out))
}

simd! {
    /// Rotates each head of `x` in place; by the opposite angles if `sign` is −1.
    fn rotate<T, V>(x: &mut [T], dim: usize, cos: &[T], sin: &[T], style: RopeStyle, sign: T) {
        let dims = 2 * cos.len();
        for head in x.chunks_exact_mut(dim) {
            let head = &mut head[..dims];
            if style == RopeStyle::Half {
                let (first, second) = head.split_at_mut(dims / 2);
                let mut i = 0;
                while i < cos.len() {
                    let (a, b) = (V::load_or(first, i, T::ZERO), V::load_or(second, i, T::ZERO));
                    let (c, s) = (V::load_or(cos, i, T::ZERO), V::load_or(sin, i, T::ZERO).mul(V::splat(sign)));
                    a.mul(c).sub(b.mul(s)).store(first, i);
                    b.mul(c).add(a.mul(s)).store(second, i);
                    i += V::LANES;
                }
            } else {
                for (i, (c, s)) in cos.iter().zip(sin).enumerate() {
                    let (at, with) = pair(style, dims, i);
                    let (a, b, s) = (head[at], head[with], *s * sign);
                    head[at] = a * *c - b * s;
                    head[with] = b * *c + a * s;
                }
            }
        }
    }
}
