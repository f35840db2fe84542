//! What goes over a connection between two ranks: frames of a head and numbers or bytes.
//!
//! ```text
//! u32 bytes of the head │ head │ u64 length, u8 width │ numbers of 4 or 8 bytes, or bytes
//! head: u8 kind, then texts (u32 length, bytes) and u64s, as the kind has them; all little endian
//! ```
//!
//! Numbers that are all exact in f32 travel as f32: most are, because most are read off f32 tensors, and nothing is rounded.

use super::super::meet::Call;
use std::io::{self, Read};

/// Longest head: names of groups grow with their members.
const MAX_HEAD: u32 = 1 << 20;
/// Read at once, so that a wrong length cannot take all memory before bytes arrive.
const PIECE: usize = 1 << 20;

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    /// What a member gives in a call of a group.
    Gift {
        key: String,
        number: u64,
        call: Call,
        data: Vec<f64>,
    },
    /// A tensor for one member.
    Mail {
        key: String,
        tag: u64,
        call: Call,
        data: Vec<f64>,
    },
    /// Bytes for whoever leads the ranks, or from them.
    Word(Vec<u8>),
    /// Still here; and what was called last.
    Beat(String),
    /// The work of all has ended, and why.
    End(String),
    /// Nothing more comes, and nothing is wrong.
    Bye,
}

/// Numbers or bytes to be written.
enum Body<'a> {
    Numbers(&'a [f64]),
    Bytes(&'a [u8]),
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn called(out: &mut Vec<u8>, kind: u8, key: &str, number: u64, call: &Call) {
    out.push(kind);
    text(out, key);
    out.extend(number.to_le_bytes());
    text(out, &call.op);
    text(out, &call.kind);
    out.extend((call.shape.0 as u64).to_le_bytes());
    out.extend((call.shape.1 as u64).to_le_bytes());
}

fn is_f32(x: f64) -> bool {
    f64::from(x as f32).to_bits() == x.to_bits()
}

fn frame(head: &[u8], body: &Body<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.len() + 13);
    out.extend((head.len() as u32).to_le_bytes());
    out.extend(head);
    let (len, width) = match body {
        Body::Bytes(bytes) => (bytes.len(), 1u8),
        Body::Numbers(numbers) if numbers.iter().all(|&x| is_f32(x)) => (numbers.len(), 4),
        Body::Numbers(numbers) => (numbers.len(), 8),
    };
    out.extend((len as u64).to_le_bytes());
    out.push(width);
    out.reserve(len * usize::from(width));
    match body {
        Body::Bytes(bytes) => out.extend(*bytes),
        Body::Numbers(numbers) if width == 4 => {
            out.extend(numbers.iter().flat_map(|&x| (x as f32).to_le_bytes()));
        }
        Body::Numbers(numbers) => out.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
    }
    out
}

/// A gift, as it is written. Its numbers are borrowed: what everybody gets is encoded once.
pub(super) fn gift(key: &str, number: u64, call: &Call, data: &[f64]) -> Vec<u8> {
    let mut head = Vec::new();
    called(&mut head, 0, key, number, call);
    frame(&head, &Body::Numbers(data))
}

/// A tensor for one member, as it is written.
pub(super) fn mail(key: &str, tag: u64, call: &Call, data: &[f64]) -> Vec<u8> {
    let mut head = Vec::new();
    called(&mut head, 1, key, tag, call);
    frame(&head, &Body::Numbers(data))
}

/// Bytes, as they are written.
pub(super) fn word(bytes: &[u8]) -> Vec<u8> {
    frame(&[2], &Body::Bytes(bytes))
}

/// A sign of life.
pub(super) fn beat(last: &str) -> Vec<u8> {
    frame(&[3], &Body::Bytes(last.as_bytes()))
}

/// The end of all work.
pub(super) fn end(reason: &str) -> Vec<u8> {
    frame(&[4], &Body::Bytes(reason.as_bytes()))
}

/// An orderly leave.
pub(super) fn bye() -> Vec<u8> {
    frame(&[5], &Body::Bytes(&[]))
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A head, read from its front.
struct Head<'a>(&'a [u8]);

impl Head<'_> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (front, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or_else(|| bad("a short head"))?;
        self.0 = rest;
        Ok(*front)
    }

    fn number(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn text(&mut self) -> io::Result<String> {
        let len = u32::from_le_bytes(self.take()?) as usize;
        let (text, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| bad("a short head"))?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| bad("a head that is no text"))
    }

    fn call(&mut self) -> io::Result<(String, u64, Call)> {
        let (key, number) = (self.text()?, self.number()?);
        let (op, kind) = (self.text()?.into(), self.text()?.into());
        let shape = (self.number()? as usize, self.number()? as usize);
        Ok((key, number, Call { op, kind, shape }))
    }
}

fn exactly(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let start = bytes.len();
        bytes.resize(len.min(start + PIECE), 0);
        from.read_exact(&mut bytes[start..])?;
    }
    Ok(bytes)
}

/// The next frame.
///
/// # Errors
/// The connection ended, nothing came in time, or it is no frame.
pub(super) fn read(from: &mut impl Read) -> io::Result<Frame> {
    let mut four = [0; 4];
    from.read_exact(&mut four)?;
    let len = u32::from_le_bytes(four);
    if len == 0 || len > MAX_HEAD {
        return Err(bad("something that is no frame"));
    }
    let head = exactly(from, len as usize)?;
    let mut rest = [0; 9];
    from.read_exact(&mut rest)?;
    let mut head = Head(&head);
    let mut nine = Head(&rest);
    let (len, [width]) = (nine.number()? as usize, nine.take::<1>()?);
    let size = len.checked_mul(usize::from(width));
    let bytes = exactly(from, size.ok_or_else(|| bad("an endless frame"))?)?;
    let numbers = |bytes: &[u8]| match width {
        4 => {
            let (each, _) = bytes.as_chunks::<4>();
            Ok(each
                .iter()
                .map(|b| f64::from(f32::from_le_bytes(*b)))
                .collect())
        }
        8 => {
            let (each, _) = bytes.as_chunks::<8>();
            Ok(each.iter().map(|b| f64::from_le_bytes(*b)).collect())
        }
        _ => Err(bad("numbers of another width")),
    };
    let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(match head.take::<1>()? {
        [0] => {
            let (key, number, call) = head.call()?;
            let data = numbers(&bytes)?;
            Frame::Gift {
                key,
                number,
                call,
                data,
            }
        }
        [1] => {
            let (key, tag, call) = head.call()?;
            let data = numbers(&bytes)?;
            Frame::Mail {
                key,
                tag,
                call,
                data,
            }
        }
        [2] => Frame::Word(bytes),
        [3] => Frame::Beat(words(bytes)),
        [4] => Frame::End(words(bytes)),
        [5] => Frame::Bye,
        _ => return Err(bad("a frame of an unknown kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back(bytes: &[u8]) -> Frame {
        let mut from = bytes;
        let frame = read(&mut from).unwrap();
        assert!(from.is_empty());
        frame
    }

    proptest! {
        #[test]
        fn every_number_arrives_with_the_bits_it_left_with(
            bits in prop::collection::vec(any::<u64>(), 0..20),
            narrow in prop::collection::vec(any::<u32>(), 0..20),
        ) {
            let wide: Vec<f64> = bits.iter().map(|&b| f64::from_bits(b)).collect();
            let narrow: Vec<f64> = narrow.iter().map(|&b| f64::from(f32::from_bits(b))).collect();
            for data in [wide, narrow] {
                let call = Call::new("all_reduce", "tensors", (1, data.len()));
                let Frame::Gift { key, number, call: said, data: got } = back(&gift("tp [0, 1]", 7, &call, &data)) else {
                    panic!("another kind");
                };
                prop_assert_eq!((key.as_str(), number, said), ("tp [0, 1]", 7, call));
                let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&got), bits(&data));
            }
        }
    }

    #[test]
    fn what_f32_holds_travels_at_half_the_size() {
        let call = Call::new("x", "y", (1, 2));
        let narrow = mail("k", 0, &call, &[1.5, -0.0]).len();
        let wide = mail("k", 0, &call, &[1.5, 0.1]).len();
        assert_eq!(wide - narrow, 8);
    }

    #[test]
    fn words_beats_and_ends_arrive_as_they_were_said() {
        assert_eq!(back(&word(b"\x00\xff")), Frame::Word(vec![0, 255]));
        assert_eq!(back(&beat("call 3")), Frame::Beat("call 3".into()));
        assert_eq!(back(&end("why")), Frame::End("why".into()));
        assert_eq!(back(&bye()), Frame::Bye);
    }

    #[test]
    fn a_connection_of_something_else_is_refused_and_not_believed() {
        let http = read(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]);
        assert_eq!(http.unwrap_err().kind(), io::ErrorKind::InvalidData);
        let cut = word(&[1; 100]);
        assert!(read(&mut &cut[..50]).is_err());
    }
}
