//! The few opcodes of Python's pickle that name a shared-memory file and the tensors in it.
//!
//! `/update_weights_from_tensor` takes a pickle, which the server reads with a list of allowed globals; what is
//! written here names only those. It refuses to be a general pickler: values are written in order, as protocol 4
//! wants them, and nothing is memoised. Read `bucket.rs` for what the bytes describe.

/// A pickle being written.
pub(super) struct Pickle(Vec<u8>);

impl Pickle {
    /// Protocol 4.
    pub(super) fn new() -> Self {
        Self(vec![0x80, 4])
    }

    /// The finished pickle.
    pub(super) fn stop(mut self) -> Vec<u8> {
        self.0.push(b'.');
        self.0
    }

    /// Raw opcodes.
    pub(super) fn op(&mut self, opcodes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(opcodes);
        self
    }

    /// SHORT_BINUNICODE or BINUNICODE.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        match u8::try_from(text.len()) {
            Ok(len) => self.op(&[0x8c, len]),
            Err(_) => self.op(b"X").op(&(text.len() as u32).to_le_bytes()),
        };
        self.op(text.as_bytes())
    }

    /// SHORT_BINBYTES.
    pub(super) fn short_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u8::try_from(bytes.len()).expect("file names are short");
        self.op(&[b'C', len]).op(bytes)
    }

    /// BININT1, BININT2, BININT or LONG1, whichever is shortest.
    pub(super) fn int(&mut self, n: u64) -> &mut Self {
        if let Ok(n) = u8::try_from(n) {
            return self.op(&[b'K', n]);
        }
        if let Ok(n) = u16::try_from(n) {
            return self.op(b"M").op(&n.to_le_bytes());
        }
        if let Ok(n) = i32::try_from(n) {
            return self.op(b"J").op(&n.to_le_bytes());
        }
        // Little endian with room for a sign bit.
        let len = (64 - n.leading_zeros()) as usize / 8 + 1;
        let wide = u128::from(n).to_le_bytes();
        self.op(&[0x8a, len as u8]).op(&wide[..len])
    }

    /// A class or function by its names.
    pub(super) fn global(&mut self, module: &str, name: &str) -> &mut Self {
        self.text(module).text(name).op(&[0x93])
    }

    /// MARK … TUPLE.
    pub(super) fn tuple(&mut self, items: impl FnOnce(&mut Self)) -> &mut Self {
        self.op(b"(");
        items(self);
        self.op(b"t")
    }

    /// A call of what was written last.
    pub(super) fn call(&mut self, args: impl FnOnce(&mut Self)) -> &mut Self {
        self.tuple(args).op(b"R")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_python_writes_them() {
        // pickle.dumps(n, 4) without its frame, from Python 3.11.
        for (n, hex) in [
            (0, "4b00"),
            (255, "4bff"),
            (256, "4d0001"),
            (65_535, "4dffff"),
            (65_536, "4a00000100"),
            (0x7fff_ffff, "4affffff7f"),
            (0x8000_0000, "8a050000008000"),
            (0xff_ffff_ffff, "8a06ffffffffff00"),
            (1 << 40, "8a06000000000001"),
        ] {
            let mut pickle = Pickle::new();
            pickle.int(n);
            let got: String = pickle.0[2..].iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(got, hex, "{n}");
        }
    }
}
