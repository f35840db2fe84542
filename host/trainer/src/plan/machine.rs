//! Rates of a machine: how long a piece of work or an exchange takes.
//!
//! ```text
//! product     FLOPs / (peak K / (K + K½)), not less than its bytes at memory speed
//! attention   FLOPs / rate, forward and backward
//! the rest    bytes / memory speed
//! exchange    bytes that leave a rank / link speed + latency times log₂ of the members
//! ```
//!
//! The bytes that leave a rank are those of a ring: `(n - 1) / n` of the data for a gather or a scatter, twice that for a
//! sum. A group inside one node uses its links, any other the network.

use slime_kernels::comm::simulated::{Exchange, Noted};
use slime_kernels::shapes::Work;

/// A kind of GPU and how many of them are wired together.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// For people.
    pub name: &'static str,
    /// GPUs of one node.
    pub gpus_per_node: usize,
    /// Memory of one GPU.
    pub memory_bytes: f64,
    /// The denominator of MFU.
    pub dense_flops: f64,
    /// Best rate of a matrix product.
    pub gemm_flops: f64,
    /// Inner size at which half of it is reached.
    pub gemm_half_k: f64,
    /// Rate of attention.
    pub attention_flops: f64,
    /// Rate of its gradient.
    pub attention_backward_flops: f64,
    /// Memory, read and written together.
    pub bytes_per_s: f64,
    /// Between GPUs of a node, each way.
    pub link_bytes_per_s: f64,
    /// Of each GPU to other nodes.
    pub network_bytes_per_s: f64,
    /// Of a hop inside a node.
    pub link_latency_s: f64,
    /// Of a hop between nodes.
    pub network_latency_s: f64,
}

impl Machine {
    /// Nodes of 8 H200 with NVLink and one 400 Gbit/s port a GPU. Matrix products as measured on one; attention as measured of
    /// cuDNN; links as usually reached. The list is in docs/book/parallel.md.
    pub fn h200() -> Self {
        Self {
            name: "H200",
            gpus_per_node: 8,
            memory_bytes: 141e9,
            dense_flops: 989.4e12,
            gemm_flops: 790e12,
            gemm_half_k: 400.0,
            attention_flops: 590e12,
            attention_backward_flops: 470e12,
            bytes_per_s: 3.6e12,
            link_bytes_per_s: 350e9,
            network_bytes_per_s: 45e9,
            link_latency_s: 8e-6,
            network_latency_s: 25e-6,
        }
    }

    /// Seconds of a piece of work.
    pub fn seconds(&self, work: &Work) -> f64 {
        match *work {
            Work::Gemm { m, n, k } => {
                let (m, n, k) = (m as f64, n as f64, k as f64);
                let rate = self.gemm_flops * k / (k + self.gemm_half_k);
                let bytes = 2.0 * (m * k + n * k + m * n);
                (work.flops() / rate).max(bytes / self.bytes_per_s)
            }
            Work::Attention { backward, .. } => {
                let rate = match backward {
                    true => self.attention_backward_flops,
                    false => self.attention_flops,
                };
                work.flops() / rate
            }
            Work::Move { bytes } => bytes as f64 / self.bytes_per_s,
        }
    }

    /// All members are GPUs of one node.
    pub fn inside_a_node(&self, members: &[usize]) -> bool {
        let mut nodes = members.iter().map(|rank| rank / self.gpus_per_node);
        let first = nodes.next();
        nodes.all(|node| Some(node) == first)
    }

    /// Bytes that leave a rank for a call into which each member puts `noted.bytes`.
    pub fn sent_bytes(&self, noted: &Noted, members: usize) -> f64 {
        let (n, bytes) = (members as f64, noted.bytes as f64);
        match noted.exchange {
            Exchange::AllReduce => 2.0 * (n - 1.0) / n * bytes,
            Exchange::AllGather => (n - 1.0) * bytes,
            Exchange::ReduceScatter | Exchange::AllToAll => (n - 1.0) / n * bytes,
            Exchange::Rotate | Exchange::Send { .. } => bytes,
            Exchange::Recv { .. } => 0.0,
            // Host numbers go through the hosts' own network, whose speed does not matter here.
            Exchange::Host | Exchange::Wait(_) => 0.0,
        }
    }

    /// Seconds of a call once all members are there.
    pub fn exchange_seconds(&self, noted: &Noted, members: &[usize]) -> f64 {
        if members.len() < 2 {
            return 0.0;
        }
        let (speed, latency) = match self.inside_a_node(members) {
            true => (self.link_bytes_per_s, self.link_latency_s),
            false => (self.network_bytes_per_s, self.network_latency_s),
        };
        let hops = (members.len() as f64).log2().ceil();
        self.sent_bytes(noted, members.len()) / speed + hops * latency
    }
}
