//! host/engine
