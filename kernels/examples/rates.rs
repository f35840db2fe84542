//! Rates of the operations that a training step and a decoding step of a 135 M model consist of, one JSON line each;
//! `benches/versus_torch.py` runs it in turn with PyTorch. `rates [seconds] [filter] [wall|cpu]`: best wall time of a
//! call, or, for one thread on a machine that others use too, mean CPU time.

#[path = "../benches/cases/mod.rs"]
mod cases;

use std::time::Instant;

use cases::{Case, Ready, cases};

#[allow(clippy::print_stdout, reason = "its output")]
fn main() {
    let seconds: f64 = std::env::args()
        .nth(1)
        .map_or(0.3, |s| s.parse().expect("seconds"));
    let filter = std::env::args().nth(2).unwrap_or_default();
    let cpu = std::env::args().nth(3).is_some_and(|clock| clock == "cpu");
    for Case { name, work, make } in cases() {
        if !name.contains(&filter) {
            continue;
        }
        let mut run = make();
        run();
        let time = if cpu {
            mean_cpu(&mut run, seconds)
        } else {
            best_wall(&mut run, seconds)
        };
        println!(
            "{{\"name\": \"{name}\", \"seconds\": {time:e}, \"per_second\": {:e}}}",
            work / time
        );
    }
}

fn best_wall(run: &mut Ready, seconds: f64) -> f64 {
    let (mut best, mut rounds, start) = (f64::INFINITY, 0, Instant::now());
    while rounds < 3 || start.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
        rounds += 1;
    }
    best
}

fn mean_cpu(run: &mut Ready, seconds: f64) -> f64 {
    let now = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
    };
    let (mut rounds, start) = (0, now());
    while rounds < 3 || now() - start < seconds {
        run();
        rounds += 1;
    }
    (now() - start) / f64::from(rounds)
}
