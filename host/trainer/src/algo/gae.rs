//! Generalised advantage estimation (arXiv:1506.02438, eq. 16) over the tokens that the policy wrote.
//!
//! ```text
//! r_t = -kl_coef · kl_t   (+ R at the last token)
//! δ_t = r_t + gamma · V_(t+1) - V_t          V after the last token is 0
//! A_t = δ_t + gamma · lambd · A_(t+1)        returns_t = A_t + V_t
//! ```
//!
//! `V_t` is the critic's value of the state in which token `t` was chosen. Tokens of the environment are not in these
//! lists: a value is carried over them undiscounted, as if the environment had answered at once (slime's scan runs
//! through them). Defaults are `gamma = lambd = 1`, with which the advantage is the return less the value.

/// What a token's reward is made of.
#[derive(Clone, Copy, Debug)]
pub struct Discount {
    /// Of what comes later.
    pub gamma: f64,
    /// Of later errors of the critic.
    pub lambd: f64,
    /// KL penalty of every token.
    pub kl_coef: f64,
}

/// Advantages and returns of one trajectory's sampled tokens; `kl` and `values` have one number each.
pub fn advantages(
    kl: &[f64],
    values: &[f64],
    reward: f64,
    discount: Discount,
) -> (Vec<f64>, Vec<f64>) {
    let Discount {
        gamma,
        lambd,
        kl_coef,
    } = discount;
    let mut advantages = vec![0.0; values.len()];
    let (mut after, mut next) = (0.0, 0.0);
    for t in (0..values.len()).rev() {
        let last = if t + 1 == values.len() { reward } else { 0.0 };
        let delta = last - kl_coef * kl[t] + gamma * next - values[t];
        after = delta + gamma * lambd * after;
        advantages[t] = after;
        next = values[t];
    }
    let returns = advantages.iter().zip(values).map(|(a, v)| a + v).collect();
    (advantages, returns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Discount = Discount {
        gamma: 1.0,
        lambd: 1.0,
        kl_coef: 0.0,
    };

    #[test]
    fn without_discounts_the_advantage_is_the_return_less_the_value() {
        let (advantages, returns) = advantages(&[0.0; 3], &[0.5, 0.25, -1.0], 2.0, PLAIN);
        assert_eq!(advantages, [1.5, 1.75, 3.0]);
        assert_eq!(returns, [2.0; 3]);
    }

    #[test]
    fn lambd_zero_looks_one_token_ahead() {
        let one = Discount {
            lambd: 0.0,
            gamma: 0.5,
            kl_coef: 0.1,
        };
        let (advantages, _) = advantages(&[1.0, 2.0], &[0.5, 0.25], 2.0, one);
        assert_eq!(advantages, [-0.1 + 0.5 * 0.25 - 0.5, 2.0 - 0.2 - 0.25]);
    }

    #[test]
    fn a_trajectory_without_a_sampled_token_has_none() {
        assert_eq!(advantages(&[], &[], 1.0, PLAIN), (vec![], vec![]));
    }
}
