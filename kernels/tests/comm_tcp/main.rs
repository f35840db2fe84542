//! Ranks as processes: the bits of ranks as threads, and no peer that is lost keeps the others waiting.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod meeting;

use meeting::{Place, free_port, ranks, rendezvous};
use slime_kernels::comm::Processes;
use slime_kernels::comm::tcp::{Rendezvous, Timing};
use slime_kernels::{Comm, Cpu, Ops, Reduce};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

fn timing(silence: Duration) -> Timing {
    Timing {
        rendezvous: Duration::from_secs(10),
        ..Timing::new(silence, LONG)
    }
}

/// Numbers whose sum depends on the order of adding.
fn numbers(rank: usize, len: usize) -> Vec<f64> {
    let mut state = rank as u64 + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        unit * 10f64.powi((state % 17) as i32 - 8)
    };
    (0..len).map(|_| next()).collect()
}

/// All that a rank can be given, as bits.
fn everything(ops: &Cpu<f64>, comm: &dyn Comm<Cpu<f64>>, rows: usize, cols: usize) -> Vec<u64> {
    let (size, data) = (comm.size(), numbers(comm.rank(), rows * cols));
    let x = ops.tensor_f64(rows, cols, &data).unwrap();
    let mut float = ops.float_f64(1, data.len(), &data).unwrap();
    let mut out = Vec::new();
    for y in [
        comm.all_reduce(&x).unwrap(),
        comm.all_gather(&x).unwrap(),
        comm.reduce_scatter(&x).unwrap(),
        comm.rotate(&x).unwrap(),
    ] {
        out.extend(ops.read_f64(&y).unwrap());
    }
    out.extend(
        ops.read_float_f64(&comm.reduce_scatter_float(&float).unwrap())
            .unwrap(),
    );
    out.extend(
        ops.read_float_f64(&comm.all_gather_float(&float).unwrap())
            .unwrap(),
    );
    comm.all_reduce_float(&mut float).unwrap();
    out.extend(ops.read_float_f64(&float).unwrap());
    let each = vec![rows / size; size];
    let dealt = comm.all_to_all(&x, &each, &each).unwrap();
    out.extend(ops.read_f64(&dealt).unwrap());
    let (mut sum, mut max) = (data.clone(), data.clone());
    comm.all_reduce_host(&mut sum, Reduce::Sum).unwrap();
    comm.all_reduce_host(&mut max, Reduce::Max).unwrap();
    out.extend(sum.into_iter().chain(max));
    out.extend(comm.all_gather_host(&data[..3]).unwrap());
    out.into_iter().map(f64::to_bits).collect()
}

#[test]
fn processes_give_the_bits_that_threads_give() {
    // The larger one is divided among the members.
    for (size, rows, cols) in [(2, 4, 3), (3, 6, 50), (4, 8, 700)] {
        let body = |ops: &Cpu<f64>, comm: &dyn Comm<Cpu<f64>>| everything(ops, comm, rows, cols);
        let threads = ranks(Place::Threads, size, LONG, body);
        let processes = ranks(Place::Tcp, size, LONG, body);
        assert!(threads == processes, "{size} ranks, [{rows}, {cols}]");
    }
}

/// A rank that greets as it should, and is then at the test's hands.
fn puppet(at: &Rendezvous) -> TcpStream {
    let Rendezvous {
        rank,
        size,
        port,
        run,
        ..
    } = at;
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", *port)) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    writeln!(stream, "slime ranks 1 {run} {rank} {size} 9").unwrap();
    let mut said = String::new();
    BufReader::with_capacity(1, &stream)
        .read_line(&mut said)
        .unwrap();
    assert!(said.starts_with("welcome "), "{said}");
    stream
}

/// Rank 0 of two waits for rank 1 in a sum → what it was told, and after how long.
fn lonely(silence: Duration, fate: impl FnOnce(TcpStream) + Send) -> (String, Duration) {
    let port = free_port();
    std::thread::scope(|scope| {
        scope.spawn(move || fate(puppet(&rendezvous(1, 2, port))));
        let processes = Processes::join(&rendezvous(0, 2, port), timing(silence)).unwrap();
        let ops = Arc::new(Cpu::<f64>::new());
        let comm = slime_kernels::comm::Tcp::new(ops, processes, "dp", vec![0, 1], 0).unwrap();
        let began = Instant::now();
        let error = comm.all_reduce_host(&mut [1.0], Reduce::Sum).unwrap_err();
        (error.to_string(), began.elapsed())
    })
}

#[test]
fn a_peer_that_dies_is_an_error_at_once() {
    let (error, took) = lonely(Duration::from_secs(20), drop);
    assert!(
        error.contains("rank 1 at 127.0.0.1 is lost: it closed"),
        "{error}"
    );
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_peer_whose_cable_is_cut_is_an_error_after_the_silence() {
    // The connection stays open, as it does when a machine vanishes.
    let (error, took) = lonely(Duration::from_millis(400), |stream| {
        std::thread::sleep(Duration::from_secs(2));
        drop(stream);
    });
    assert!(
        error.contains("rank 1 at 127.0.0.1 is lost: it sent nothing for 0.4 s"),
        "{error}"
    );
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_rank_that_computes_for_long_is_not_taken_for_lost() {
    let (silence, port) = (Duration::from_millis(300), free_port());
    let sums = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            scope.spawn(move || {
                let processes =
                    Processes::join(&rendezvous(rank, 2, port), timing(silence)).unwrap();
                let ops = Arc::new(Cpu::<f64>::new());
                let comm =
                    slime_kernels::comm::Tcp::new(ops, processes, "dp", vec![0, 1], rank).unwrap();
                if rank == 1 {
                    std::thread::sleep(5 * silence);
                }
                let mut x = [rank as f64 + 1.0];
                comm.all_reduce_host(&mut x, Reduce::Sum)
                    .map(|()| x[0])
                    .map_err(|e| e.to_string())
            })
        };
        [rank(0), rank(1)].map(|h| h.join().unwrap())
    });
    assert_eq!(sums, [Ok(3.0), Ok(3.0)]);
}

#[test]
fn one_rank_s_end_is_everybody_s_with_its_own_words() {
    let told = ranks(Place::Tcp, 3, LONG, |_, comm| match comm.rank() {
        // Refused here, before anything is sent.
        1 => {
            let error = comm
                .all_to_all_host(&[1.0; 3], &[1, 1, 1], &[1, 2, 1])
                .unwrap_err();
            std::thread::sleep(Duration::from_millis(200));
            error.to_string()
        }
        _ => {
            let first = comm
                .all_to_all_host(&[1.0; 3], &[1, 1, 1], &[1, 1, 1])
                .map(drop);
            first
                .and_then(|()| comm.all_gather_host(&[1.0]).map(drop))
                .unwrap_err()
                .to_string()
        }
    });
    for told in told {
        assert!(
            told.contains("rank 1") && told.contains("awaits 2"),
            "{told}"
        );
    }
}

#[test]
fn words_reach_one_rank_and_its_leave_is_no_loss() {
    let port = free_port();
    let heard = std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let at = rendezvous(1, 2, port);
            let processes = Processes::join(&at, timing(Duration::from_secs(5))).unwrap();
            let heard = processes.hear(0, Some(LONG)).unwrap();
            processes.tell(0, b"done").unwrap();
            heard
        });
        let processes =
            Processes::join(&rendezvous(0, 2, port), timing(Duration::from_secs(5))).unwrap();
        assert_eq!(processes.address(1).unwrap().to_string(), "127.0.0.1");
        processes.tell(1, b"train").unwrap();
        assert_eq!(processes.hear(1, Some(LONG)).unwrap(), b"done");
        let gone = processes.hear(1, None).unwrap_err().to_string();
        assert!(gone.contains("rank 1 has left"), "{gone}");
        assert_eq!(processes.ended(), None);
        other.join().unwrap()
    });
    assert_eq!(heard, b"train");
}

#[test]
fn who_does_not_belong_is_told_why_and_disturbs_nobody() {
    let port = free_port();
    let wrong = |at: Rendezvous| {
        let error = Processes::join(&at, timing(Duration::from_secs(2))).map(drop);
        error.unwrap_err().to_string()
    };
    std::thread::scope(|scope| {
        let leader = scope.spawn(move || {
            let processes =
                Processes::join(&rendezvous(0, 2, port), timing(Duration::from_secs(5)));
            processes.unwrap().hear(1, Some(LONG)).unwrap()
        });
        let mut stranger = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        stranger.write_all(b"GET / HTTP/1.1\n\n").unwrap();
        let mut said = String::new();
        BufReader::new(stranger).read_line(&mut said).unwrap();
        assert_eq!(said, "no another version, or no rank at all\n");
        let other_run = Rendezvous {
            run: "other".into(),
            ..rendezvous(1, 2, port)
        };
        assert!(wrong(other_run).contains("this is run test, not other"));
        assert!(wrong(rendezvous(1, 3, port)).contains("here are 2 ranks, there 3"));
        assert!(wrong(rendezvous(5, 2, port)).contains("ranks count from 0"));
        let right = Processes::join(&rendezvous(1, 2, port), timing(Duration::from_secs(5)));
        right.unwrap().tell(0, b"here").unwrap();
        assert_eq!(leader.join().unwrap(), b"here");
    });
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let short = Timing {
        rendezvous: Duration::from_millis(300),
        ..timing(Duration::from_secs(1))
    };
    let absent = Processes::join(&rendezvous(0, 3, free_port()), short).map(drop);
    let absent = absent.unwrap_err().to_string();
    assert!(
        absent.contains("ranks 1, 2 of 3 did not come to 127.0.0.1:"),
        "{absent}"
    );
    let nobody = Processes::join(&rendezvous(1, 2, free_port()), short).map(drop);
    let nobody = nobody.unwrap_err().to_string();
    assert!(
        nobody.contains("rank 1 cannot reach rank 0 at 127.0.0.1:")
            && nobody.contains("MASTER_ADDR"),
        "{nobody}"
    );
}
