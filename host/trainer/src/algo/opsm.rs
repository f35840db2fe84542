//! Off-policy sequence masking (`--use-opsm`; DeepSeek-V3.2, §3.1): a trajectory that the policy has drifted away from
//! is no longer pushed down.
//!
//! ```text
//! surrogate_t ← 0   where A_t < 0 and mean_t (old_t - logp_t) > opsm_delta
//! ```
//!
//! The mean runs over a trajectory's sampled tokens. `opsm_delta` is 1e-4, slime's.

/// Whether a token of a trajectory with this mean of `old - logp` is left out of the surrogate.
pub fn masks(drift: f64, advantage: f64, delta: f64) -> bool {
    advantage < 0.0 && drift > delta
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bad_trajectories_that_have_become_unlikely_are_left_out() {
        assert!(masks(0.2, -1.0, 0.1));
        assert!(!masks(0.2, 1.0, 0.1), "a good one may be made likely again");
        assert!(!masks(0.05, -1.0, 0.1) && !masks(-0.2, -1.0, 0.1));
        assert!(!masks(0.0, -1.0, 1e-4), "on policy nothing is masked");
    }
}
