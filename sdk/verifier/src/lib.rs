//! sdk/verifier
