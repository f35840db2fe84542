//! The parity matrix: every layout of ranks against one rank, printed as a table.
//!
//! ```text
//! cargo parity                  the rows of the default tests
//! cargo parity --all            every row, in f64 and in f32
//! cargo parity --all cp         the rows of one group
//! ```
//!
//! Ends with 1 if a row does not hold.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

#[path = "../../tests/parallel/cases.rs"]
mod cases;
#[path = "../../tests/parallel/toy.rs"]
mod toy;

use slime_kernels::{Cpu, Ops};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Losses, gradients, parameters.
const DOUBLE: [f64; 3] = [1e-10, 1e-11, 1e-10];
/// One step of f32.
const SINGLE: [f64; 3] = [1e-5, 1e-5, 1e-5];

fn row<O: Ops>(case: &cases::Case, dtype: &str, device: fn() -> O, limits: [f64; 3]) -> bool {
    let began = Instant::now();
    let one = toy::on_one(&Arc::new(device()), case.toy, &case.config, &case.records);
    let many = toy::on_many(
        device,
        case.toy,
        &case.config,
        &case.parallel,
        &case.records,
    );
    let name = format!(
        "{:12} {dtype} {:2} ranks  {}",
        case.group,
        case.parallel.world(),
        case.name
    );
    let seconds = began.elapsed().as_secs_f64();
    match many {
        Ok(many) => {
            let gaps = toy::gaps(&many, &one);
            let found = [gaps.loss, gaps.gradient, gaps.weight];
            let holds = found.iter().zip(limits).all(|(gap, limit)| *gap <= limit);
            let mark = if holds { "ok" } else { "OFF" };
            println!(
                "{mark:4} {:8.1e} {:8.1e} {:8.1e} {seconds:6.1} s  {name}{}",
                found[0],
                found[1],
                found[2],
                if holds {
                    String::new()
                } else {
                    format!("  ({})", gaps.worst)
                }
            );
            holds
        }
        Err(error) => {
            println!("FAIL                            {seconds:6.1} s  {name}: {error}");
            false
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let everything = words.iter().any(|w| w == "--all");
    let groups: Vec<&String> = words.iter().filter(|w| !w.starts_with("--")).collect();
    let chosen = |case: &cases::Case| {
        (everything || case.quick) && (groups.is_empty() || groups.iter().any(|g| *g == case.group))
    };
    println!("     losses   gradients params   time      row (gaps to one rank, relative)");
    let (mut held, mut total) = (0, 0);
    for case in cases::all().iter().filter(|case| chosen(case)) {
        total += 1;
        held += usize::from(row(case, "f64", Cpu::<f64>::new, DOUBLE));
        if everything {
            let mut single = case.clone();
            single.config.num_steps_per_rollout = Some(1);
            // Or Adam would move by a whole step where a gradient is nothing but rounding.
            single.config.adam_eps = 1e-5;
            total += 1;
            // A delta net carries what one token is rounded by to all later ones.
            let times = if case.toy.family == "qwen3_next" {
                3.0
            } else {
                1.0
            };
            let limits = SINGLE.map(|limit| limit * times);
            held += usize::from(row(&single, "f32", Cpu::<f32>::new, limits));
        }
    }
    println!("{held} of {total} rows hold");
    ExitCode::from(u8::from(held != total || total == 0))
}
