//! What a verifier can do wrong, a word each.

use slime_sdk_verifier::{Error, ErrorCode, Finished, Level, Verdict, Verifier, export, log};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

struct Hostile;

static CALLS: AtomicU64 = AtomicU64::new(0);

impl Verifier for Hostile {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let word = item.prompt();
        CALLS.fetch_add(1, Ordering::Relaxed);
        match word.as_str() {
            // Time.
            "loop" => spin(),
            "sleep" => std::thread::sleep(Duration::from_secs(60)),
            // Memory.
            "alloc" => hoard(1 << 20),
            "grow-then-answer" => {
                let mut block: Vec<u8> = Vec::new();
                let refused = block.try_reserve_exact(1 << 30).is_err();
                return Ok(Verdict::reward(f64::from(refused)));
            }
            "recurse" => return Ok(Verdict::reward(recurse(1) as f64)),
            "huge-stack" => return Ok(Verdict::reward(huge_stack())),
            // Traps.
            "panic" => panic!("the sky fell"),
            "exit" => std::process::exit(3),
            "trap" => trap(),
            // Answers.
            "nan" => return Ok(Verdict::reward(f64::NAN)),
            "infinite" => return Ok(Verdict::reward(f64::INFINITY)),
            "two" => return Ok(Verdict::reward(2.0)),
            "negative" => return Ok(Verdict::reward(-0.5)),
            "negative-zero" => return Ok(Verdict::reward(-0.0)),
            "nan-metric" => return Ok(Verdict::reward(1.0).with_metric("part", f64::NAN)),
            "nameless-metric" => return Ok(Verdict::reward(1.0).with_metric("", 1.0)),
            "many-metrics" => {
                let all = (0..10_000).fold(Verdict::reward(1.0), |v, i| {
                    v.with_metric(format!("m{i}"), 0.0)
                });
                return Ok(all);
            }
            "long-message" => return Err(Error::other("é".repeat(50_000))),
            "gold" => return Err(Error::invalid_gold("the label `None` is no answer")),
            "fail" => return Err(Error::other("I give up")),
            "claim-cancelled" => return Err(Error::new(ErrorCode::Cancelled, "pretend")),
            "claim-unavailable" => return Err(Error::new(ErrorCode::Unavailable, "pretend")),
            // The boundary.
            "return-64-mib" => return Err(Error::other("x".repeat(64 << 20))),
            "return-1-gib" => return Err(Error::other(lying_string(1 << 30))),
            "invalid-utf8" => return Err(Error::other(invalid_string())),
            "spam" => loop {
                item.finish_reason();
            },
            "log-spam" => loop {
                log(Level::Info, "again");
            },
            "log" => (0..100).for_each(|i| log(Level::Debug, &format!("line {i}"))),
            "print" => {
                (0..10_000).for_each(|i| eprintln!("line {i} of a guest that likes to talk"))
            }
            // Authority.
            "escape" => return Ok(escape()),
            "environment" => {
                return Ok(Verdict::reward(f64::from(
                    std::env::var("TOKEN").is_ok_and(|v| v == "sesame"),
                )));
            }
            "read-file" => {
                let text = std::fs::read_to_string("/data/word.txt").unwrap_or_default();
                let wrote = std::fs::write("/data/word.txt", "changed").is_ok();
                return Ok(Verdict::reward(f64::from(text == "sesame"))
                    .with_metric("wrote", f64::from(wrote)));
            }
            // Repeatability.
            "count" => {
                return Ok(
                    Verdict::reward(1.0).with_metric("calls", CALLS.load(Ordering::Relaxed) as f64)
                );
            }
            "chance" => return Ok(chance()),
            "memmove" => return Ok(Verdict::reward(f64::from(memmove()))),
            "nan-bits" => {
                let (zero, other): (f32, f32) = std::hint::black_box((0.0, 0.0));
                return Ok(Verdict::reward(f64::from(
                    (zero / other).to_bits() == 0x7fc0_0000,
                )));
            }
            // The ordinary.
            "length" => {
                return Ok(Verdict::reward(1.0).with_metric("bytes", item.response().len() as f64));
            }
            "work" => {
                let sum = (0..40_000_000u64).fold(1u64, |x, i| {
                    std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005) + i)
                });
                return Ok(Verdict::reward(f64::from(sum != 0)));
            }
            "read-all" => {
                let bytes = item.response().len()
                    + item.label().unwrap_or_default().len()
                    + item.metadata_json().len();
                let found = item.metadata("level").unwrap_or_default() == "3"
                    && item.finish_reason().is_some();
                return Ok(Verdict::reward(f64::from(found)).with_metric("bytes", bytes as f64));
            }
            _ => {}
        }
        Ok(Verdict::reward(1.0))
    }
}

export!(Hostile);

fn spin() {
    let mut n = 0u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

fn hoard(block_bytes: usize) {
    let mut blocks = Vec::new();
    loop {
        blocks.push(std::hint::black_box(vec![1u8; block_bytes]));
    }
}

#[allow(unconditional_recursion, reason = "that is its point")]
#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let pad = std::hint::black_box([depth; 64]);
    recurse(depth + 1) + pad[7]
}

/// Never inlined: the frame is this function's own.
#[inline(never)]
fn huge_stack() -> f64 {
    let pad = std::hint::black_box([1u8; 8 << 20]);
    f64::from(pad[std::hint::black_box(12_345)])
}

fn trap() {
    #[cfg(target_family = "wasm")]
    core::arch::wasm32::unreachable();
}

/// A string that claims more bytes than the guest has.
#[allow(clippy::same_length_and_capacity, reason = "that is its point")]
fn lying_string(bytes: usize) -> String {
    let start = Box::leak(Box::new([b'x'; 16])).as_mut_ptr();
    // SAFETY: none. The guest lies to its host, which is what the test is about; nothing in the guest reads it.
    unsafe { String::from_raw_parts(start, bytes, bytes) }
}

fn invalid_string() -> String {
    // SAFETY: none, as above: bytes that are no UTF-8 go to the host as a string.
    unsafe { String::from_utf8_unchecked(vec![b'o', b'k', 0xf0, 0x9f, 0x98]) }
}

/// Reward 1 when nothing outside can be reached.
fn escape() -> Verdict {
    let tries = [
        std::fs::read_to_string("/etc/passwd").is_ok(),
        std::fs::read_dir("/").is_ok(),
        std::fs::write("pwned", "x").is_ok(),
        std::env::vars().next().is_some(),
        std::env::args().next().is_some(),
        std::net::TcpStream::connect("127.0.0.1:22").is_ok(),
        std::net::TcpListener::bind("127.0.0.1:0").is_ok(),
        std::net::UdpSocket::bind("127.0.0.1:0").is_ok(),
        std::process::Command::new("true").spawn().is_ok(),
    ];
    let escaped = tries.iter().filter(|&&succeeded| succeeded).count();
    Verdict::reward(f64::from(escaped == 0)).with_metric("escaped", escaped as f64)
}

/// Everything a guest can draw chance and time from.
fn chance() -> Verdict {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let start = std::time::Instant::now();
    let hash = RandomState::new().hash_one("slime");
    Verdict::reward(1.0)
        .with_metric("now", since.as_secs_f64())
        .with_metric("elapsed", start.elapsed().as_secs_f64())
        .with_metric("hash", (hash >> 12) as f64)
}

/// Whether an overlapping copy behaves as memmove.
fn memmove() -> bool {
    let mut bytes: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    bytes.copy_within(0..199_999, 1);
    (1..200_000u32).all(|i| bytes[i as usize] == ((i - 1) % 251) as u8)
}
