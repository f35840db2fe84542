//! Matrix products through cublasLt, with the algorithm of each kind of shape chosen once by timing.
//!
//! Batches differ in their number of tokens, so shapes that differ by less than an eighth share a choice; choices are kept on
//! disk ([`choices`](super::choices)), so that the next run takes the same ones and repeats this one's bits. cublasLt is column-major; a row-major `[rows, cols]` is its `[cols, rows]`, so `y = x Wᵀ` is asked for as
//! `yᵀ = W xᵀ`.

use super::choices::Choices;
use super::device::Device;
use crate::{Error, Result};
use cudarc::cublaslt::{result as lt, sys};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

const WORKSPACE_BYTES: usize = 64 << 20;
/// Plans that cublasLt proposes and we time.
const CANDIDATES: usize = 16;
/// Rounds of timing, of which each plan's fastest counts.
const TRIALS: usize = 3;

/// Plans kept before all are forgotten; one a shape, and shapes differ with the tokens of a batch.
const MOST_PLANS: usize = 4096;

/// What cublasLt is asked for, in its own column-major terms: `c[m, n] = op(a) op(b) (+ c)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    /// fp32 output, else bf16.
    pub(super) float_out: bool,
    /// Add to the output instead of replacing it.
    pub(super) accumulate: bool,
}

impl Shape {
    /// Shapes that share an algorithm: each size rounded up to three significant bits.
    fn kind(self) -> Self {
        let round = |n: usize| n.next_multiple_of((n.next_power_of_two() / 8).max(1));
        Self {
            m: round(self.m),
            n: round(self.n),
            k: round(self.k),
            ..self
        }
    }
}

/// Where the products of one shape lie that are made side by side, one a head. Of `a`, `b` and `c`, in cublasLt's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Heads {
    pub(super) count: usize,
    /// From a column to the next.
    pub(super) leading: [usize; 3],
    /// From a head to the next.
    pub(super) step: [usize; 3],
}

struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algo: sys::cublasLtMatmulAlgo_t,
}

pub(super) struct Gemm {
    inner: Mutex<Inner>,
}

struct Inner {
    handle: sys::cublasLtHandle_t,
    plans: HashMap<(Shape, Option<Heads>), Plan>,
    choices: Choices,
    workspace: super::pool::Block,
}

// SAFETY: cublasLt handles and descriptors may be used from any thread, one at a time; the mutex in `Gemm` sees to that.
unsafe impl Send for Inner {}

fn check(what: &'static str, status: sys::cublasStatus_t) -> Result<()> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Device {
        library: "cublasLt",
        detail: format!("{what}: {status:?}"),
    })
}

impl Gemm {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let handle = lt::create_handle().map_err(|e| Error::Device {
            library: "cublasLt",
            detail: format!("no handle: {e:?}"),
        })?;
        let workspace = device
            .pool
            .take(WORKSPACE_BYTES, "the matrix product workspace")?;
        let choices = Choices::load(&device.context.name().map_err(super::driver)?);
        Ok(Self {
            inner: Mutex::new(Inner {
                handle,
                plans: HashMap::new(),
                choices,
                workspace,
            }),
        })
    }

    /// `c = op(a) op(b)`; with `add`, added to what is there. Whether it is added changes no plan: `shape.accumulate` says
    /// what the plan is chosen for.
    pub(super) fn run(
        &self,
        device: &Device,
        shape: Shape,
        inputs: (u64, u64),
        c: u64,
        add: bool,
    ) -> Result<()> {
        self.run_heads(device, shape, None, inputs, c, add)
    }

    /// The same of each head, in one launch. The library's first proposal is taken, as heads are for serving.
    pub(super) fn run_heads(
        &self,
        device: &Device,
        shape: Shape,
        heads: Option<Heads>,
        (a, b): (u64, u64),
        c: u64,
        add: bool,
    ) -> Result<()> {
        if shape.m == 0 || shape.n == 0 || shape.k == 0 {
            return Ok(());
        }
        let _order = device.bind()?;
        let mut inner = self.inner.lock().unwrap_or_else(|e| e.into_inner());
        let key = (shape, heads);
        if !inner.plans.contains_key(&key) {
            if inner.plans.len() == MOST_PLANS {
                inner.plans.clear();
            }
            let plan = match heads {
                Some(_) => {
                    let mut plan = describe(shape, heads)?;
                    plan.algo = inner.candidates(&plan)?[0].algo;
                    plan
                }
                None => inner.plan(device, shape, a, b)?,
            };
            inner.plans.insert(key, plan);
        }
        let plan = &inner.plans[&key];
        let beta = if add { 1.0 } else { 0.0 };
        let span = device.profile().begin(&device.stream)?;
        inner.launch(device, plan, &plan.algo, a, b, c, beta)?;
        let Shape { m, n, k, .. } = shape;
        device
            .profile()
            .end(&device.stream, span, || format!("product {m} x {n} x {k}"))
    }
}

impl Inner {
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one cublasLt call"
    )]
    fn launch(
        &self,
        device: &Device,
        plan: &Plan,
        algo: &sys::cublasLtMatmulAlgo_t,
        a: u64,
        b: u64,
        c: u64,
        beta: f32,
    ) -> Result<()> {
        let alpha = 1.0f32;
        // SAFETY: descriptors and layouts live in the plan, the pointers are device memory of at least the layouts' sizes,
        // and the workspace is as large as said.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle,
                plan.desc,
                (&raw const alpha).cast(),
                a as *const c_void,
                plan.layouts[0],
                b as *const c_void,
                plan.layouts[1],
                (&raw const beta).cast(),
                c as *const c_void,
                plan.layouts[2],
                c as *mut c_void,
                plan.layouts[2],
                algo,
                self.workspace.ptr as *mut c_void,
                WORKSPACE_BYTES,
                device.stream.cu_stream().cast(),
            )
        };
        check("matmul", status)
    }

    /// The choice made for this kind of shape, or else ask for candidates, time each on the real operands and keep the
    /// fastest. The trial writes to scratch memory, so an accumulating product is not disturbed.
    fn plan(&mut self, device: &Device, shape: Shape, a: u64, b: u64) -> Result<Plan> {
        let mut plan = describe(shape, None)?;
        if let Some(algo) = self
            .choices
            .get(shape.kind())
            .filter(|algo| self.supports(&plan, algo))
        {
            plan.algo = algo;
            return Ok(plan);
        }
        let found = self.candidates(&plan)?;
        plan.algo = found[0].algo;
        if found.len() > 1 {
            let bytes = shape.m * shape.n * if shape.float_out { 4 } else { 2 };
            let Ok(scratch) = device.pool.take(bytes, "a matrix product trial") else {
                // No room to try them: the library's first choice, and another time is another chance.
                return Ok(plan);
            };
            let beta = if shape.accumulate { 1.0 } else { 0.0 };
            // In rounds, so that a change of the card's clock meets all of them.
            let mut best = vec![f32::INFINITY; found.len()];
            for _ in 0..TRIALS {
                for (candidate, best) in found.iter().zip(&mut best) {
                    let run =
                        || self.launch(device, &plan, &candidate.algo, a, b, scratch.ptr, beta);
                    if run().is_ok() {
                        *best = best.min(device.time_ms(2, run)?);
                    }
                }
            }
            let fastest = (0..found.len()).min_by(|&i, &j| best[i].total_cmp(&best[j]));
            plan.algo = found[fastest.unwrap_or(0)].algo;
        }
        self.choices.put(shape.kind(), plan.algo);
        Ok(plan)
    }

    /// Can an algorithm chosen for a neighbour do this shape?
    fn supports(&self, plan: &Plan, algo: &sys::cublasLtMatmulAlgo_t) -> bool {
        let [a, b, c] = plan.layouts;
        // SAFETY: the plan's handles live as long as it; the result is a live local.
        unsafe {
            let mut result: sys::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let status =
                sys::cublasLtMatmulAlgoCheck(self.handle, plan.desc, a, b, c, c, algo, &mut result);
            status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                && result.workspaceSize <= WORKSPACE_BYTES
        }
    }

    fn candidates(&self, plan: &Plan) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>> {
        let (desc, layouts) = (plan.desc, plan.layouts);
        let bytes = WORKSPACE_BYTES;
        // SAFETY: every pointer is to a live local; the preference is destroyed before return.
        unsafe {
            let mut preference = std::ptr::null_mut();
            check(
                "preference",
                sys::cublasLtMatmulPreferenceCreate(&mut preference),
            )?;
            check(
                "workspace limit",
                sys::cublasLtMatmulPreferenceSetAttribute(
                    preference,
                    sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    (&raw const bytes).cast(),
                    size_of::<usize>(),
                ),
            )?;
            let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = std::mem::zeroed();
            let mut count = 0;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                desc,
                layouts[0],
                layouts[1],
                layouts[2],
                layouts[2],
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &mut count,
            );
            sys::cublasLtMatmulPreferenceDestroy(preference);
            check("heuristic", status)?;
            if count == 0 {
                return Err(Error::Device {
                    library: "cublasLt",
                    detail: "no algorithm for this product".into(),
                });
            }
            Ok(found[..count as usize].to_vec())
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the plan owns its handles, and cublasLt copies what a launch needs of them.
        unsafe {
            for layout in self.layouts {
                sys::cublasLtMatrixLayoutDestroy(layout);
            }
            sys::cublasLtMatmulDescDestroy(self.desc);
        }
    }
}

/// A plan without an algorithm yet.
fn describe(shape: Shape, heads: Option<Heads>) -> Result<Plan> {
    use sys::cublasLtMatmulDescAttributes_t as Attribute;
    let half = sys::cudaDataType_t::CUDA_R_16BF;
    let out = if shape.float_out {
        sys::cudaDataType_t::CUDA_R_32F
    } else {
        half
    };
    let layout = |which: usize, kind, rows: usize, cols: usize| {
        let leading = heads.map_or(rows, |heads| heads.leading[which]);
        let mut layout = std::ptr::null_mut();
        // SAFETY: writes one handle to a live local.
        let status = unsafe {
            sys::cublasLtMatrixLayoutCreate(
                &mut layout,
                kind,
                rows as u64,
                cols as u64,
                leading as i64,
            )
        };
        check("layout", status)?;
        if let Some(heads) = heads {
            repeat(layout, heads.count as i32, heads.step[which] as i64)?;
        }
        Ok::<_, Error>(layout)
    };
    let a = if shape.transpose_a {
        layout(0, half, shape.k, shape.m)
    } else {
        layout(0, half, shape.m, shape.k)
    }?;
    let b = if shape.transpose_b {
        layout(1, half, shape.n, shape.k)
    } else {
        layout(1, half, shape.k, shape.n)
    }?;
    let c = layout(2, out, shape.m, shape.n)?;
    let mut desc = std::ptr::null_mut();
    // SAFETY: writes one handle to a live local.
    check("descriptor", unsafe {
        sys::cublasLtMatmulDescCreate(
            &mut desc,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType_t::CUDA_R_32F,
        )
    })?;
    for (attribute, value) in [
        (
            Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
            i32::from(shape.transpose_a),
        ),
        (
            Attribute::CUBLASLT_MATMUL_DESC_TRANSB,
            i32::from(shape.transpose_b),
        ),
    ] {
        // SAFETY: reads four bytes of a live local.
        check("transpose", unsafe {
            sys::cublasLtMatmulDescSetAttribute(
                desc,
                attribute,
                (&raw const value).cast(),
                size_of::<i32>(),
            )
        })?;
    }
    Ok(Plan {
        desc,
        layouts: [a, b, c],
        algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
    })
}

/// Make a layout that of `count` matrices, each `step` numbers behind the one before.
fn repeat(layout: sys::cublasLtMatrixLayout_t, count: i32, step: i64) -> Result<()> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    // SAFETY: the layout lives, and the numbers are live locals of the sizes said.
    unsafe {
        check(
            "matrices of a layout",
            sys::cublasLtMatrixLayoutSetAttribute(
                layout,
                Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                (&raw const count).cast(),
                size_of::<i32>(),
            ),
        )?;
        check(
            "step of a layout",
            sys::cublasLtMatrixLayoutSetAttribute(
                layout,
                Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                (&raw const step).cast(),
                size_of::<i64>(),
            ),
        )
    }
}
