//! Which cublasLt algorithm was fastest for a kind of product, kept on disk.
//!
//! One text file a GPU model and library version, a line a choice. It is a cache: a file that cannot be read or written costs
//! a new timing, nothing else.

use super::gemm::Shape;
use cudarc::cublaslt::sys;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;

pub(super) struct Choices {
    known: HashMap<Shape, [u64; 8]>,
    file: Option<PathBuf>,
}

impl Choices {
    pub(super) fn load(gpu: &str) -> Self {
        // SAFETY: takes nothing, returns a number.
        let version = unsafe { sys::cublasLtGetVersion() };
        let gpu: String = gpu
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let file = super::nvrtc::cache_folder()
            .map(|root| root.join("gemm").join(format!("{gpu}-{version}.txt")));
        let text = file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_default();
        Self {
            known: text.lines().filter_map(parse).collect(),
            file,
        }
    }

    pub(super) fn get(&self, kind: Shape) -> Option<sys::cublasLtMatmulAlgo_t> {
        self.known
            .get(&kind)
            .map(|&data| sys::cublasLtMatmulAlgo_t { data })
    }

    pub(super) fn put(&mut self, kind: Shape, algo: sys::cublasLtMatmulAlgo_t) {
        self.known.insert(kind, algo.data);
        let Some(file) = &self.file else { return };
        let mut lines: Vec<String> = self
            .known
            .iter()
            .map(|(shape, data)| line(shape, data))
            .collect();
        lines.sort();
        super::nvrtc::store(file, lines.concat().as_bytes());
    }
}

fn line(shape: &Shape, data: &[u64; 8]) -> String {
    let flags = [
        shape.transpose_a,
        shape.transpose_b,
        shape.float_out,
        shape.accumulate,
    ]
    .map(u8::from);
    let mut line = format!("{} {} {}", shape.m, shape.n, shape.k);
    for flag in flags {
        let _ = write!(line, " {flag}");
    }
    for word in data {
        let _ = write!(line, " {word}");
    }
    line.push('\n');
    line
}

fn parse(line: &str) -> Option<(Shape, [u64; 8])> {
    let numbers: Vec<u64> = line
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let [m, n, k, ta, tb, float, add, data @ ..] = numbers.as_slice() else {
        return None;
    };
    let shape = Shape {
        m: *m as usize,
        n: *n as usize,
        k: *k as usize,
        transpose_a: *ta != 0,
        transpose_b: *tb != 0,
        float_out: *float != 0,
        accumulate: *add != 0,
    };
    Some((shape, data.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_back_from_its_line() {
        let shape = Shape {
            m: 3,
            n: 20,
            k: 700,
            transpose_a: true,
            transpose_b: false,
            float_out: true,
            accumulate: false,
        };
        let data = [1, 0, u64::MAX, 4, 5, 6, 7, 8];
        assert_eq!(parse(line(&shape, &data).trim_end()), Some((shape, data)));
        assert_eq!(parse("3 20"), None);
    }
}
