//! Collectives between threads and between processes: right numbers in rank order, and an error that names both sides where
//! ranks disagree. What only processes do is in `comm_tcp`.

#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "comm_tcp/meeting.rs"]
mod meeting;

use meeting::{PLACES, ranks};
use slime_kernels::comm::Begun;
use slime_kernels::{Cpu, Ops, Reduce, Result};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

fn read(ops: &Cpu<f64>, x: Result<<Cpu<f64> as Ops>::Tensor>) -> Vec<f64> {
    ops.read_f64(&x.unwrap()).unwrap()
}

#[test]
fn every_collective_gives_what_its_words_say() {
    for place in PLACES {
        let all = ranks(place, 3, LONG, |ops, comm| {
            let r = comm.rank() as f64;
            let own: Vec<f64> = (0..6).map(|i| 10.0 * r + i as f64).collect();
            let x = ops.tensor_f64(3, 2, &own).unwrap();
            let sent = ops.tensor_f64(3, 1, &[r, 10.0 + r, 20.0 + r]).unwrap();
            // Rank r sends one row to each of the others, and the rest to itself.
            let mut float = ops.float_f64(1, 3, &own[..3]).unwrap();
            let scattered = comm.reduce_scatter_float(&float).unwrap();
            let gathered = comm.all_gather_float(&float).unwrap();
            comm.all_reduce_float(&mut float).unwrap();
            let (mut sum, mut max) = (vec![r, 1.0], vec![r, -r]);
            comm.all_reduce_host(&mut sum, Reduce::Sum).unwrap();
            comm.all_reduce_host(&mut max, Reduce::Max).unwrap();
            let others = (0..3).filter(|&to| to != comm.rank());
            let swapped: Vec<f64> = others.map(|to| 10.0 * r + to as f64).collect();
            let swapped = ops.tensor_f64(2, 1, &swapped).unwrap();
            let swapped = comm.begin_swap(swapped, 1).and_then(Begun::wait);
            let turned = comm.begin_rotate(x.clone()).and_then(Begun::wait);
            let next = (comm.rank() + 1) % 3;
            comm.send(next, 7, &x).unwrap();
            [
                read(ops, comm.all_reduce(&x)),
                read(ops, comm.all_gather(&x)),
                read(ops, comm.reduce_scatter(&x)),
                read(ops, comm.all_to_all(&sent, &[1, 1, 1], &[1, 1, 1])),
                read(ops, comm.rotate(&x)),
                read(ops, comm.recv((comm.rank() + 2) % 3, 7, 3, 2)),
                ops.read_float_f64(&float).unwrap(),
                ops.read_float_f64(&scattered).unwrap(),
                ops.read_float_f64(&gathered).unwrap(),
                sum,
                max,
                comm.all_gather_host(&[r]).unwrap(),
                read(ops, swapped),
                read(ops, turned),
            ]
        });
        for (rank, got) in all.iter().enumerate() {
            let r = rank as f64;
            let before = (rank + 2) % 3;
            let own = |r: usize| (0..6).map(move |i| 10.0 * r as f64 + i as f64);
            let sum: Vec<f64> = (0..6).map(|i| 30.0 + 3.0 * i as f64).collect();
            assert_eq!(got[0], sum);
            assert_eq!(got[1], (0..3).flat_map(own).collect::<Vec<_>>());
            assert_eq!(got[2], sum[2 * rank..2 * rank + 2]);
            assert_eq!(got[3], [10.0 * r, 10.0 * r + 1.0, 10.0 * r + 2.0]);
            assert_eq!(got[4], own(before).collect::<Vec<_>>());
            assert_eq!(got[5], got[4]);
            assert_eq!(got[6], sum[..3]);
            assert_eq!(got[7], [sum[rank]]);
            assert_eq!(
                got[8],
                (0..3).flat_map(|r| own(r).take(3)).collect::<Vec<_>>()
            );
            assert_eq!(
                (&got[9][..], &got[10][..]),
                (&[3.0, 3.0][..], &[2.0, 0.0][..])
            );
            assert_eq!(got[11], [0.0, 1.0, 2.0]);
            let others = (0..3).filter(|&from| from != rank);
            let swapped: Vec<f64> = others.map(|from| 10.0 * from as f64 + r).collect();
            assert_eq!(got[12], swapped);
            assert_eq!(got[13], got[4]);
        }
    }
}

#[test]
fn sums_are_in_rank_order_so_all_ranks_get_the_same_bits() {
    for place in PLACES {
        let numbers = [1e16, 1.0, -1e16];
        let all = ranks(place, 3, LONG, |ops, comm| {
            let x = ops.tensor_f64(1, 1, &[numbers[comm.rank()]]).unwrap();
            read(ops, comm.all_reduce(&x))[0]
        });
        assert_eq!(all, [(1e16 + 1.0) - 1e16; 3]);
    }
}

#[test]
fn ranks_that_call_different_things_are_both_named() {
    for place in PLACES {
        let all = ranks(place, 2, LONG, |ops, comm| {
            let x = ops
                .tensor_f64(2, 2 + comm.rank(), &vec![0.0; 4 + 2 * comm.rank()])
                .unwrap();
            comm.all_reduce(&x).map(drop).unwrap_err().to_string()
        });
        for message in all {
            for part in [
                "rank 0",
                "rank 1",
                "[2, 2]",
                "[2, 3]",
                "call 0",
                "tp [0, 1]",
            ] {
                assert!(message.contains(part), "{message}");
            }
        }
    }
}

#[test]
fn a_rank_that_stays_away_ends_the_world_in_time_and_is_named_with_its_last_call() {
    for place in PLACES {
        let began = Instant::now();
        let all = ranks(place, 3, Duration::from_millis(300), |ops, comm| {
            let x = ops.tensor_f64(1, 1, &[0.0]).unwrap();
            comm.all_reduce(&x).unwrap();
            match comm.rank() {
                2 => {
                    std::thread::sleep(Duration::from_millis(900));
                    String::new()
                }
                _ => comm.all_gather(&x).map(drop).unwrap_err().to_string(),
            }
        });
        assert!(began.elapsed() < Duration::from_secs(10));
        for message in &all[..2] {
            let parts = [
                "absent: rank 2",
                "its last: call 0",
                "all_reduce",
                "all_gather",
            ];
            assert!(parts.iter().all(|p| message.contains(p)), "{message}");
        }
    }
}

#[test]
fn a_message_of_another_shape_than_awaited_is_refused_on_both_sides() {
    for place in PLACES {
        let all = ranks(place, 2, LONG, |ops, comm| {
            let x = ops.tensor_f64(2, 3, &[0.0; 6]).unwrap();
            let result = match comm.rank() {
                0 => comm.send(1, 0, &x).and_then(|()| comm.recv(1, 1, 1, 1)),
                _ => comm.recv(0, 0, 3, 2),
            };
            result.map(drop).unwrap_err().to_string()
        });
        for message in all {
            assert!(
                message.contains("[2, 3]") && message.contains("[3, 2]"),
                "{message}"
            );
        }
    }
}

#[test]
fn rows_that_nobody_awaits_are_refused() {
    for place in PLACES {
        let all = ranks(place, 2, LONG, |ops, comm| {
            let x = ops.tensor_f64(2, 1, &[0.0; 2]).unwrap();
            let send = [1, 1];
            let recv = if comm.rank() == 0 { [1, 1] } else { [2, 1] };
            let first = comm.all_to_all(&x, &send, &recv).map(drop);
            let second = comm.all_reduce(&x).map(drop);
            first.and(second).unwrap_err().to_string()
        });
        for message in all {
            assert!(
                message.contains("sends 1 rows") && message.contains("awaits 2"),
                "{message}"
            );
        }
    }
}
