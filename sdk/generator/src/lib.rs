//! sdk/generator
