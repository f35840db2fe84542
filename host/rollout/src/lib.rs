//! host/rollout
