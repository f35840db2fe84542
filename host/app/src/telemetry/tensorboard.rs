//! TensorBoard event files, written by hand: TFRecord frames with masked CRC-32C around four kinds of message.
//!
//! Scalars only. The wire format is TensorFlow's `event.proto` and `tfrecord` framing.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Appends scalars to one event file.
pub struct TensorBoard {
    file: BufWriter<File>,
}

impl TensorBoard {
    /// A new event file in `dir`. With `resumed_at`, readers drop what earlier files hold from that step on.
    ///
    /// # Errors
    /// The directory or file cannot be made.
    pub fn create(dir: &Path, resumed_at: Option<u64>) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Readers order files by name, so the name begins with the time.
        let name = format!(
            "events.out.tfevents.{:010}.slime.{}",
            since.as_secs(),
            since.subsec_nanos()
        );
        let mut board = Self {
            file: BufWriter::new(File::create(dir.join(name))?),
        };
        board.event(0, |event| bytes(event, 3, b"brain.Event:2"))?;
        if let Some(step) = resumed_at {
            // SessionLog { status: START }.
            board.event(step, |event| bytes(event, 7, &[0x08, 1]))?;
        }
        board.file.flush()?;
        Ok(board)
    }

    /// Write named numbers of one step and hand them to the system.
    ///
    /// # Errors
    /// The disk refused.
    pub fn write<'a>(
        &mut self,
        step: u64,
        values: impl Iterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (name, value) in values {
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, name.as_bytes());
            scalar.push(2 << 3 | 5);
            scalar.extend((value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        self.event(step, |event| bytes(event, 5, &summary))?;
        self.file.flush()
    }

    fn event(&mut self, step: u64, what: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let mut event = vec![1 << 3 | 1];
        event.extend(now.to_le_bytes());
        event.push(2 << 3);
        varint(&mut event, step);
        what(&mut event);
        let length = (event.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&masked_crc(&length).to_le_bytes())?;
        self.file.write_all(&event)?;
        self.file.write_all(&masked_crc(&event).to_le_bytes())
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A length-delimited field.
fn bytes(out: &mut Vec<u8>, field: u8, data: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, data.len() as u64);
    out.extend(data);
}

fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: an event is a few hundred bytes a step.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_frame_of_a_file_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(dir.path(), Some(300)).unwrap();
        board
            .write(
                300,
                [("rollout/reward", 0.5), ("train/lr", 1e-6)].into_iter(),
            )
            .unwrap();
        let path = std::fs::read_dir(dir.path())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let (data, mut at, mut frames) = (std::fs::read(path).unwrap(), 0, 0);
        while at < data.len() {
            let length = u64::from_le_bytes(data[at..at + 8].try_into().unwrap()) as usize;
            let event = &data[at + 12..at + 12 + length];
            let crc =
                |range: std::ops::Range<usize>| u32::from_le_bytes(data[range].try_into().unwrap());
            assert_eq!(crc(at + 8..at + 12), masked_crc(&data[at..at + 8]));
            assert_eq!(crc(at + 12 + length..at + 16 + length), masked_crc(event));
            at += 16 + length;
            frames += 1;
        }
        assert_eq!(frames, 3);
    }
}
