//! Guests that misbehave, for the runtime's tests. The first word of the prompt says how.
//!
//! One component exports both worlds, as a real plugin may.

mod generator;
mod verifier;
