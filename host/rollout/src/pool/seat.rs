//! Where a server sits in the pool: its address, and which part of a request it does.

use super::Address;

/// Which part of a request a server does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// The prompt. Its keys and values go to a server that decodes.
    Prefill,
    /// The response.
    Decode,
}

/// A server's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Where it listens.
    pub address: Address,
    /// Which part it does.
    pub part: Part,
    /// Where servers that decode meet one that prefills.
    pub bootstrap_port: Option<u16>,
}

impl From<Address> for Seat {
    fn from(address: Address) -> Self {
        Self {
            address,
            part: Part::Whole,
            bootstrap_port: None,
        }
    }
}
