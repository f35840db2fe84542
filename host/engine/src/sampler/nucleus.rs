//! top-k, top-p and min-p, with SGLang's meanings.
//!
//! top-p cuts by the mass of the whole distribution (top-k does not renormalise it first): a token stays if the
//! tokens before it, by falling probability, hold at most `top_p`. min-p drops what is below `min_p ×` the largest.
//! Ties go to the smaller id. Only what can survive is sorted.

/// What is cut off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) top_k: usize,
    pub(super) top_p: f64,
    pub(super) min_p: f64,
}

impl Cut {
    pub(super) fn keeps_all(&self, vocab: usize) -> bool {
        self.top_k >= vocab && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Ids that may be drawn, with their weights, in order of id. `weights` are relative to the largest, which is 1.
    pub(super) fn kept(&self, weights: &[f32], total: f64) -> Vec<(u32, f32)> {
        // Tokens below this hold less than 1 - top_p together, so none of them is in the nucleus.
        let tail = if self.top_p < 1.0 {
            (1.0 - self.top_p) * total / weights.len() as f64
        } else {
            0.0
        };
        let floor = tail.max(self.min_p) as f32;
        // `floor` was rounded: one ulp below keeps what is exactly at the bound; the exact tests follow.
        let floor = if floor > 0.0 {
            floor.next_down()
        } else {
            f32::MIN_POSITIVE
        };
        let mut kept: Vec<(u32, f32)> = weights
            .iter()
            .enumerate()
            .filter(|&(_, &w)| w >= floor)
            .map(|(i, &w)| (i as u32, w))
            .collect();
        let better = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if self.top_k < kept.len() {
            kept.select_nth_unstable_by(self.top_k - 1, better);
            kept.truncate(self.top_k);
        }
        if self.top_p < 1.0 {
            kept.sort_unstable_by(better);
            let mut before = 0.0;
            let end = kept.iter().position(|&(_, w)| {
                let out = before > self.top_p * total;
                before += f64::from(w);
                out
            });
            kept.truncate(end.unwrap_or(kept.len()).max(1));
        }
        kept.retain(|&(_, w)| f64::from(w) >= self.min_p || w == 1.0);
        kept.sort_unstable_by_key(|&(id, _)| id);
        kept
    }

    /// The kept id at which their cumulative weight passes `u ×` its sum.
    pub(super) fn pick(&self, weights: &[f32], total: f64, u: f64) -> usize {
        let kept = self.kept(weights, total);
        let mut left = u * kept.iter().map(|&(_, w)| f64::from(w)).sum::<f64>();
        for &(id, w) in &kept {
            if left < f64::from(w) {
                return id as usize;
            }
            left -= f64::from(w);
        }
        kept.last().map_or(0, |&(id, _)| id as usize)
    }
}
