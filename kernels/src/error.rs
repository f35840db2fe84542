//! What a kernel refuses, and what a device cannot do.

/// A kernel's error. Wrong shapes are a bug of the caller and say both sides.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Operands do not fit.
    #[error("{op}: {detail}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Both shapes, in words.
        detail: String,
    },
    /// The device has no room for a tensor.
    #[error("out of device memory: {wanted_bytes} bytes wanted for {what}, {free_bytes} free")]
    OutOfMemory {
        /// What was to be placed.
        what: String,
        /// Its size.
        wanted_bytes: u64,
        /// What is left.
        free_bytes: u64,
    },
    /// The device or its library failed.
    #[error("{library}: {detail}")]
    Device {
        /// Which library reported it.
        library: &'static str,
        /// Its words and the cure.
        detail: String,
    },
    /// Ranks disagree, one does not answer, or one has failed.
    #[error("{0}")]
    Comm(String),
}

/// A kernel's result.
pub type Result<T> = std::result::Result<T, Error>;
