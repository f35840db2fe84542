//! How many bits of a number a device keeps, found out by asking it for one back.

use slime_kernels::{Ops, Result};

/// What survives a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f64.
    Double,
    /// f32.
    Single,
    /// Less than f32: an update of 1e-6 would be lost, so weights need a master copy.
    Rounded,
}

impl Precision {
    /// Of weights and activations.
    ///
    /// # Errors
    /// The device failed.
    pub fn of_weights<O: Ops>(ops: &O) -> Result<Self> {
        Ok(Self::from_echo(
            &ops.read_f64(&ops.tensor_f64(1, 2, &PROBE)?)?,
        ))
    }

    /// Of accumulators.
    ///
    /// # Errors
    /// The device failed.
    pub fn of_accumulators<O: Ops>(ops: &O) -> Result<Self> {
        Ok(Self::from_echo(
            &ops.read_float_f64(&ops.float_f64(1, 2, &PROBE)?)?,
        ))
    }

    fn from_echo(echo: &[f64]) -> Self {
        match (echo == PROBE, echo.last() == PROBE.last()) {
            (true, _) => Self::Double,
            (_, true) => Self::Single,
            _ => Self::Rounded,
        }
    }
}

/// The first number needs a double, the second a single.
const PROBE: [f64; 2] = [
    1.0 + 1.0 / (1u64 << 40) as f64,
    1.0 + 1.0 / (1u64 << 20) as f64,
];
