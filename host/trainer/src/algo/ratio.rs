//! The importance ratio, kept finite.

/// Log-ratios beyond this are clamped before they are exponentiated: `e^20` is 4.9e8, and nothing a bound of a
/// surrogate could care about lies beyond, but an infinite ratio times a zero advantage is NaN.
pub const MAX_LOG_RATIO: f64 = 20.0;

/// `(exp(log_ratio), whether it was clamped)`. Not for NaN: such a token is masked and counted by its caller.
pub fn ratio_of(log_ratio: f64) -> (f64, bool) {
    let clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
    (clamped.exp(), clamped != log_ratio)
}
