//! What a verifier can do wrong, a word each.
#![allow(clippy::print_stdout, reason = "one of them prints for ever")]

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
            "backtrack" => return Ok(Verdict::reward(f64::from(backtrack(&[b'a'; 40])))),
            "big-number" => return Ok(Verdict::reward(big_number())),
            "wait-for-the-clock" => wait_for_the_clock(),
            "print-forever" => loop {
                println!("{}", "z".repeat(1000));
            },
            "spam-with-work" => loop {
                item.response();
            },
            "format-bomb" => return Ok(Verdict::reward(format_bomb())),
            // Memory.
            "fragments" => fragments(),
            "doubling" => doubling(),
            "raw-grow" => return Ok(Verdict::reward(raw_grow())),
            "text-bomb" => return Err(Error::other("lol".repeat(1 << 26))),
            "leak-on-purpose" => loop {
                std::mem::forget(std::hint::black_box(vec![7u8; 1 << 16]));
            },
            "alloc" => hoard(1 << 20),
            "grow-then-answer" => {
                let mut block: Vec<u8> = Vec::new();
                let refused = block.try_reserve_exact(1 << 30).is_err();
                return Ok(Verdict::reward(f64::from(refused)));
            }
            "recurse" => return Ok(Verdict::reward(recurse(1) as f64)),
            "huge-stack" => return Ok(Verdict::reward(huge_stack())),
            "mutual" => return Ok(Verdict::reward(ping(1) as f64)),
            "drop-chain" => drop_chain(),
            // Traps.
            "divide" => {
                return Ok(Verdict::reward(
                    (1 / item.prompt().len().wrapping_sub(6)) as f64,
                ));
            }
            "index" => return Ok(Verdict::reward(f64::from(word.as_bytes()[word.len() + 1]))),
            "wild-read" => return Ok(Verdict::reward(wild_read())),
            "wild-write" => wild_write(),
            "null-call" => null_call(),
            "double-panic" => double_panic(),
            "abort" => std::process::abort(),
            "exit-0" => std::process::exit(0),
            "overflow" => {
                return Ok(Verdict::reward(f64::from(
                    u8::try_from(word.len() * 1000).expect("a number that fits"),
                )));
            }
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
            "long-metric-name" => {
                return Ok(Verdict::reward(1.0).with_metric("m".repeat(1 << 20), 1.0));
            }
            "metric-of-no-size" => {
                return Ok(Verdict::reward(1.0).with_metric("part", f64::NEG_INFINITY));
            }
            "tiny-over" => return Ok(Verdict::reward(1.0 + f64::EPSILON)),
            "subnormal" => return Ok(Verdict::reward(f64::MIN_POSITIVE / 2.0)),
            "claim-limit" => return Err(Error::new(ErrorCode::LimitExceeded, "pretend")),
            "claim-denied" => return Err(Error::new(ErrorCode::Denied, "pretend")),
            "forge-outcome" => return Err(Error::other("scored 1.0\noutcome: scored")),
            "huge-detail" => {
                let mut error = Error::other("see the detail");
                error.detail = Some("[".repeat(2 << 20));
                return Err(error);
            }
            // The boundary.
            "long-key" => {
                item.metadata(&"k".repeat(2 << 20));
            }
            "lying-key" => {
                item.metadata(&lying_string(1 << 30));
            }
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
            "look-around" => return Ok(look_around()),
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

#[inline(never)]
fn ping(depth: u64) -> u64 {
    pong(std::hint::black_box(depth) + 1) + 1
}

#[inline(never)]
fn pong(depth: u64) -> u64 {
    ping(std::hint::black_box(depth) + 1) + 1
}

/// A list so long that dropping it, link by link, needs more stack than there is.
fn drop_chain() {
    struct Link(#[allow(dead_code, reason = "is dropped")] Option<Box<Link>>);
    let chain = (0..1_000_000).fold(Link(None), |rest, _| Link(Some(Box::new(rest))));
    drop(std::hint::black_box(chain));
}

/// `(a+)+$` against `aaa…b`, as a naive matcher does it.
fn backtrack(text: &[u8]) -> bool {
    if text.is_empty() {
        return false;
    }
    (1..=text.len()).any(|n| backtrack(std::hint::black_box(&text[n..])))
}

/// 7 squared again and again.
fn big_number() -> f64 {
    let mut digits = vec![7u32];
    loop {
        let mut square = vec![0u64; digits.len() * 2];
        for (i, a) in digits.iter().enumerate() {
            for (j, b) in digits.iter().enumerate() {
                let at = i + j;
                square[at] += u64::from(*a) * u64::from(*b);
                square[at + 1] += square[at] / 10;
                square[at] %= 10;
            }
        }
        digits = square.iter().map(|d| *d as u32).collect();
        if digits.is_empty() {
            return 0.0;
        }
    }
}

fn wait_for_the_clock() {
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_secs(1 << 40) {}
}

fn format_bomb() -> f64 {
    let mut text = String::from("x");
    loop {
        text = format!("{text:>width$}", width = text.len() * 2);
        if text.is_empty() {
            return 0.0;
        }
    }
}

fn fragments() {
    let mut all: Vec<Box<[u8; 24]>> = Vec::new();
    loop {
        all.push(std::hint::black_box(Box::new([1; 24])));
    }
}

fn doubling() {
    let mut bytes = vec![1u8];
    loop {
        let copy = bytes.clone();
        bytes.extend_from_slice(std::hint::black_box(&copy));
    }
}

/// Asks the engine itself, and copes with the answer: 1 when it was refused in the end.
fn raw_grow() -> f64 {
    #[cfg(target_family = "wasm")]
    for _ in 0..100_000 {
        if core::arch::wasm32::memory_grow(0, 16) == usize::MAX {
            return 1.0;
        }
    }
    0.0
}

fn wild_read() -> f64 {
    let at = std::hint::black_box(0xffff_fff0_usize as *const u32);
    // SAFETY: none. The address lies outside the guest's memory, which is what the test is about.
    f64::from(unsafe { at.read_volatile() })
}

fn wild_write() {
    let at = std::hint::black_box(0xffff_fff0_usize as *mut u32);
    // SAFETY: none, as above.
    unsafe { at.write_volatile(1) };
}

fn null_call() {
    let nowhere = std::hint::black_box(0xffff_usize);
    // SAFETY: none. There is no such function, which is what the test is about.
    let call: fn() = unsafe { std::mem::transmute(nowhere) };
    call();
}

fn double_panic() {
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            panic!("again");
        }
    }
    let _again = Again;
    panic!("once");
}

/// More of what cannot be reached; reward 1 when none of it can.
fn look_around() -> Verdict {
    let mut input = String::new();
    let _ = std::io::Read::read_to_string(&mut std::io::stdin(), &mut input);
    let tries = [
        std::thread::Builder::new().spawn(|| ()).is_ok(),
        std::net::ToSocketAddrs::to_socket_addrs("localhost:80").is_ok(),
        std::fs::create_dir("/tmp/x").is_ok(),
        std::fs::read("/proc/self/environ").is_ok(),
        std::fs::read("/dev/urandom").is_ok(),
        std::env::current_exe().is_ok(),
        !input.is_empty(),
    ];
    // A bit a try, so that a failure says which.
    let bits = tries.iter().enumerate();
    let seen: u32 = bits.map(|(bit, seen)| u32::from(*seen) << bit).sum();
    Verdict::reward(f64::from(seen == 0)).with_metric("seen", f64::from(seen))
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
