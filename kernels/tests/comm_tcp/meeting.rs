//! Ranks that meet in one of the places there are, each on a thread of the test.

use slime_kernels::comm::tcp::{Rendezvous, Timing};
use slime_kernels::comm::{Group, Meet, Processes, World};
use slime_kernels::{Comm, Cpu};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

type F64 = Cpu<f64>;

/// Where ranks meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Threads,
    Tcp,
}

#[allow(dead_code, reason = "each test uses a part")]
pub(crate) const PLACES: [Place; 2] = [Place::Threads, Place::Tcp];

/// A port of this machine that nobody uses.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

pub(crate) fn rendezvous(rank: usize, size: usize, port: u16) -> Rendezvous {
    let (host, run) = ("127.0.0.1".to_owned(), "test".to_owned());
    Rendezvous {
        rank,
        size,
        host,
        port,
        run,
    }
}

fn member<M: Meet + 'static>(
    place: Arc<M>,
    size: usize,
    rank: usize,
) -> (Arc<F64>, Box<dyn Comm<F64>>) {
    let ops = Arc::new(F64::new());
    let group = Group::new(ops.clone(), place, "tp", (0..size).collect(), rank).unwrap();
    (ops, Box::new(group))
}

/// Run `body` on `size` ranks of one group, and gather what each returns.
pub(crate) fn ranks<R: Send>(
    place: Place,
    size: usize,
    patience: Duration,
    body: impl Fn(&F64, &dyn Comm<F64>) -> R + Sync,
) -> Vec<R> {
    let (world, port) = (World::new(size, patience), free_port());
    std::thread::scope(|scope| {
        let spawn = |rank| {
            let (world, body) = (world.clone(), &body);
            scope.spawn(move || match place {
                Place::Threads => {
                    let (ops, comm) = member(world, size, rank);
                    body(&ops, &*comm)
                }
                Place::Tcp => {
                    let timing = Timing::new(Duration::from_secs(5), patience);
                    let processes = Processes::join(&rendezvous(rank, size, port), timing).unwrap();
                    let (ops, comm) = member(processes, size, rank);
                    body(&ops, &*comm)
                }
            })
        };
        let handles: Vec<_> = (0..size).map(spawn).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    })
}
