//! host/model
