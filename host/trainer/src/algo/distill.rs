//! On-policy distillation (Thinking Machines, "On-Policy Distillation", 2025): the student's own tokens, judged by a
//! teacher's log-probs.
//!
//! ```text
//! A_t ← A_t - opd_kl_coef · (old_t - teacher_t)
//! ```
//!
//! The subtracted term is one token's estimate of KL(student ‖ teacher). It is added to whatever the estimator made of
//! rewards, before whitening; a verifier that always answers 0 leaves distillation alone. Default coefficient 1, as in
//! slime. A token whose log-prob nobody knows keeps the advantage it has.

/// Take the penalty off in place; all lists are of the same tokens.
pub fn penalise(advantages: &mut [f64], old: &[f64], teacher: &[f64], coef: f64) {
    for ((advantage, old), teacher) in advantages.iter_mut().zip(old).zip(teacher) {
        let gap = old - teacher;
        if gap.is_finite() {
            *advantage -= coef * gap;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_the_teacher_likes_better_is_encouraged() {
        let mut advantages = [0.0, 0.0, 0.5, 1.0];
        penalise(
            &mut advantages,
            &[-2.0, -0.5, -1.0, f64::NAN],
            &[-1.0, -1.5, -1.0, -1.0],
            0.5,
        );
        assert_eq!(advantages, [0.5, -0.5, 0.5, 1.0]);
    }
}
