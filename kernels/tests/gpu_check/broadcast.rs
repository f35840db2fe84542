//! A broadcast to a rank elsewhere, which is another thread here: a second GPU, and NCCL, are needed.

use slime_kernels::cuda::Cuda;
use slime_kernels::cuda::broadcast::Broadcaster;
use slime_kernels::{Error, Ops, Result};

/// Prints a line and returns how many are wrong.
pub(crate) fn check(cuda: &Cuda) -> usize {
    let what = "a tensor and bytes arrive as they lie";
    crate::with_two_gpus("broadcast", what, || {
        crate::say("broadcast", what, arrives(cuda))
    })
}

fn arrives(cuda: &Cuda) -> Result<bool> {
    let values: Vec<f32> = (0..513 * 24).map(|i| (i % 251) as f32 - 125.0).collect();
    let x = cuda.tensor(513, 24, &values)?;
    // Still on its way when it is sent.
    let x = cuda.add(&x, &x)?;
    let bits = cuda.read_bits(&x, Vec::new())?;
    let widened = bits
        .iter()
        .map(|&half| f32::from_bits(u32::from(half) << 16));
    let right = widened.eq(cuda.read(&x)?);
    let bytes = vec![3u8, 1, 4, 1, 5];
    let sender = Broadcaster::open(0)?;
    let id = sender.new_id()?;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let receiver = Broadcaster::open(crate::gpu_of(1))?;
            receiver.join_as(&id, 2, 1)?;
            Ok([receiver.receive(2 * bits.len())?, receiver.receive(5)?])
        });
        sender.join(&id, 2)?;
        sender.send_tensor(cuda, &x)?;
        sender.send(&bytes)?;
        let died = |_| Error::Comm("the receiver panicked".into());
        let got: [Vec<u8>; 2] = other.join().map_err(died)??;
        let sent: Vec<u8> = bits.iter().flat_map(|half| half.to_le_bytes()).collect();
        Ok(right && got == [sent, bytes])
    })
}
