//! host/trainer
