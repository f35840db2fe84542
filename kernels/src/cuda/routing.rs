//! Choosing experts on the device: logits stay there, the choices and their weights come to the host, which sorts rows.

use super::device::Arg::{self, Float as F, Int, Ptr};
use super::ops::{expect, whole_vectors};
use super::{Cuda, Float, Tensor, sources};
use crate::{Error, Result, Route};

/// Rows of a block, as in `routing/kernel.cu`.
const WARPS: usize = 8;
/// Experts that a warp's registers hold, and groups that its shared memory does.
const MOST_EXPERTS: usize = 1024;
const MOST_GROUPS: usize = 32;

impl Cuda {
    /// Whether the kernels can do it; if not, the host does.
    pub(super) fn routes(rule: &Route) -> bool {
        rule.experts <= MOST_EXPERTS
            && rule.groups.is_none_or(|(count, _)| count <= MOST_GROUPS)
            && rule.experts.is_multiple_of(8)
    }

    fn rule_args(rule: &Route) -> [Arg; 7] {
        let (groups, kept) = rule.groups.unwrap_or((0, 0));
        [
            Int(rule.experts as i32),
            Int(rule.top_k as i32),
            Int(groups as i32),
            Int(kept as i32),
            Int(i32::from(rule.is_sigmoid)),
            Int(i32::from(rule.renormalise)),
            F(rule.scale as f32),
        ]
    }

    pub(super) fn routed(
        &self,
        logits: &Float,
        bias: Option<&Tensor>,
        forced: Option<&[u32]>,
        rule: &Route,
    ) -> Result<(Vec<u32>, Vec<f64>)> {
        let rows = logits.rows;
        expect("route", logits.cols == rule.experts, || {
            format!("[{rows}, {}] logits for {rule:?}", logits.cols)
        })?;
        let len = rows * rule.top_k;
        if len == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let forced = match forced {
            Some(forced) => Some(self.device.upload(forced, "recorded experts")?),
            None => None,
        };
        let experts = self.device.pool.take(4 * len, "experts of rows")?;
        let weights = self.device.pool.take(4 * len, "experts' weights")?;
        let mut args = vec![
            Ptr(logits.at(&self.device)?),
            Ptr(bias.map_or(0, |bias| bias.block.ptr)),
            Ptr(forced.as_ref().map_or(0, |forced| forced.ptr)),
            Ptr(experts.ptr),
            Ptr(weights.ptr),
            Int(rows as i32),
        ];
        args.extend(Self::rule_args(rule));
        let grid = (rows.div_ceil(WARPS) as u32, 1, 1);
        let source = sources::routing(rule.experts);
        let threads = 32 * WARPS as u32;
        self.device
            .launch(&source, "route", grid, threads, 0, &args)?;
        let experts: Vec<u32> = self.device.download(&experts, len)?;
        if let Some(at) = experts.iter().position(|&e| e as usize >= rule.experts) {
            return Err(Error::Shape {
                op: "routing",
                detail: format!(
                    "a router's logit of row {} is not a number",
                    at / rule.top_k
                ),
            });
        }
        let weights: Vec<f32> = self.device.download(&weights, len)?;
        Ok((experts, weights.into_iter().map(f64::from).collect()))
    }

    pub(super) fn routed_gradient(
        &self,
        logits: &Float,
        rule: &Route,
        experts: &[u32],
        weights: &[f64],
        dweights: &[f64],
    ) -> Result<Tensor> {
        let rows = logits.rows;
        let len = rows * rule.top_k;
        let fits = [experts.len(), weights.len(), dweights.len()] == [len; 3];
        expect(
            "route_backward",
            fits && logits.cols == rule.experts,
            || {
                format!(
                    "{} choices of [{rows}, {}] for {rule:?}",
                    experts.len(),
                    logits.cols
                )
            },
        )?;
        whole_vectors("route_backward", rule.experts)?;
        let dlogits = self.new_tensor(rows, rule.experts, "a router's gradient")?;
        if len == 0 {
            return Ok(dlogits);
        }
        let single = |numbers: &[f64]| numbers.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let experts = self.device.upload(experts, "experts of rows")?;
        let weights = self.device.upload(&single(weights), "experts' weights")?;
        let dweights = self.device.upload(&single(dweights), "experts' weights")?;
        let mut args = vec![
            Ptr(logits.at(&self.device)?),
            Ptr(experts.ptr),
            Ptr(weights.ptr),
            Ptr(dweights.ptr),
            Ptr(dlogits.block.ptr),
            Int(rows as i32),
        ];
        args.extend(Self::rule_args(rule));
        let grid = (rows.div_ceil(WARPS) as u32, 1, 1);
        let source = sources::routing(rule.experts);
        let threads = 32 * WARPS as u32;
        self.device
            .launch(&source, "route_backward", grid, threads, 0, &args)?;
        Ok(dlogits)
    }
}
