//! How ranks find each other: all come to rank 0, learn where the others listen, and connect to those before them.
//!
//! ```text
//! rank r ─► rank 0    "slime ranks 1", run, rank, size, port it listens on
//! rank 0 ─► rank r    "welcome" and everybody's address, or "no" and why
//! rank r ─► 1 … r-1   the same greeting; the answer is "welcome"
//! ```
//!
//! A stranger, a rank of another run or of an earlier attempt is refused with a reason and disturbs nobody.

use super::link::Link;
use crate::{Error, Result};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// What a greeting begins with; the number changes with the protocol.
const MAGIC: &str = "slime ranks 1";
/// How long a stranger may hold the door.
const GREETING: Duration = Duration::from_secs(3);
/// Between two tries to reach rank 0, which may not have started yet.
const AGAIN: Duration = Duration::from_millis(100);
/// How long an attempt before may still hold the port.
const VACATED: Duration = Duration::from_secs(10);
/// Longest line of a greeting or its answer: a table of 16,384 addresses fits.
const MAX_LINE: u64 = 1 << 20;

/// Where and as what a rank meets the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Name or address of rank 0's machine.
    pub host: String,
    /// Port rank 0 listens on.
    pub port: u16,
    /// Ranks of another run do not meet these. No white space.
    pub run: String,
}

/// How long ranks wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Until all have come.
    pub rendezvous: Duration,
    /// Between two signs of life.
    pub beat: Duration,
    /// Without a sign of life, until a rank counts as lost.
    pub silence: Duration,
    /// For a rank that lives and does not make the call that the others make.
    pub patience: Duration,
}

impl Timing {
    /// Ranks that are silent for `silence` are lost, and wait at most `patience` for each other.
    pub fn new(silence: Duration, patience: Duration) -> Self {
        Self {
            rendezvous: Duration::from_secs(300),
            beat: silence / 5,
            silence,
            patience,
        }
    }
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Comm(what.to_string())
}

/// Meet the others → a connection to each, by rank.
pub(super) fn connect(at: &Rendezvous, timing: Timing) -> Result<Vec<Option<Link>>> {
    if at.rank >= at.size {
        return Err(failed(format!(
            "rank {} of {} ranks: ranks count from 0",
            at.rank, at.size
        )));
    }
    let deadline = Instant::now() + timing.rendezvous;
    match at.rank {
        0 => lead(at, timing, deadline),
        _ => follow(at, timing, deadline),
    }
}

/// Rank 0: wait for all, then tell each where the others are.
fn lead(at: &Rendezvous, timing: Timing, deadline: Instant) -> Result<Vec<Option<Link>>> {
    let listener = bind(at, deadline)?;
    let mut come: Vec<Option<(TcpStream, SocketAddr)>> = (0..at.size).map(|_| None).collect();
    gather(&listener, at, 1..at.size, &mut come, deadline).map_err(|absent| {
        let (port, waited) = (at.port, timing.rendezvous.as_secs_f64());
        failed(format!("{absent} did not come to {}:{port} within {waited} s: see whether their nodes run and reach this one", at.host))
    })?;
    let table: Vec<String> = come
        .iter()
        .map(|rank| {
            rank.as_ref()
                .map_or_else(|| "-".into(), |(_, addr)| addr.to_string())
        })
        .collect();
    let table = table.join(" ");
    let mut links = Vec::with_capacity(at.size);
    for (rank, stream) in come.into_iter().enumerate() {
        let link = |(stream, _)| welcome(stream, &table, timing);
        let link = stream.map(link).transpose();
        links.push(link.map_err(|e| failed(format!("rank {rank} left while the ranks met: {e}")))?);
    }
    Ok(links)
}

fn follow(at: &Rendezvous, timing: Timing, deadline: Instant) -> Result<Vec<Option<Link>>> {
    let mut stream = reach(at, deadline)?;
    let here = stream.local_addr().map_err(failed)?.ip();
    let listener = TcpListener::bind((here, 0))
        .map_err(|e| failed(format!("cannot listen on {here}: {e}")))?;
    let port = listener.local_addr().map_err(failed)?.port();
    greet(&mut stream, at, port).map_err(failed)?;
    let left = deadline.saturating_duration_since(Instant::now()) + timing.silence;
    stream.set_read_timeout(Some(left)).map_err(failed)?;
    let leader = format!("rank 0 at {}:{}", at.host, at.port);
    let said =
        line(&mut stream).map_err(|e| failed(format!("{leader} left while the ranks met: {e}")))?;
    let table = answered(&said).map_err(|why| {
        failed(format!(
            "{leader} does not take this rank {}: {why}",
            at.rank
        ))
    })?;
    let addresses: Vec<&str> = table.split(' ').collect();
    let mut links: Vec<Option<Link>> = (0..at.size).map(|_| None).collect();
    links[0] = Some(Link::new(stream, timing).map_err(failed)?);
    for peer in 1..at.rank {
        let address = addresses.get(peer).copied().unwrap_or_default();
        let missed = |e: &dyn std::fmt::Display| {
            failed(format!(
                "rank {} cannot reach rank {peer} at {address}: {e}",
                at.rank
            ))
        };
        let address: SocketAddr = address.parse().map_err(|e| missed(&e))?;
        let mut stream =
            TcpStream::connect_timeout(&address, timing.silence).map_err(|e| missed(&e))?;
        stream
            .set_read_timeout(Some(left))
            .map_err(|e| missed(&e))?;
        greet(&mut stream, at, 0).map_err(|e| missed(&e))?;
        let said = line(&mut stream).map_err(|e| missed(&e))?;
        answered(&said).map_err(|why| missed(&why))?;
        links[peer] = Some(Link::new(stream, timing).map_err(|e| missed(&e))?);
    }
    let mut come: Vec<Option<(TcpStream, SocketAddr)>> = (0..at.size).map(|_| None).collect();
    gather(&listener, at, at.rank + 1..at.size, &mut come, deadline)
        .map_err(|absent| failed(format!("{absent} did not connect to rank {}", at.rank)))?;
    for (peer, stream) in come.into_iter().enumerate() {
        if let Some((stream, _)) = stream {
            links[peer] = Some(welcome(stream, "", timing).map_err(failed)?);
        }
    }
    Ok(links)
}

/// Listen where the others were told to come: on that address alone if it is this machine's, else on all.
fn bind(at: &Rendezvous, deadline: Instant) -> Result<TcpListener> {
    let addresses = (at.host.as_str(), at.port).to_socket_addrs();
    let own: Vec<SocketAddr> = addresses.map(Iterator::collect).unwrap_or_default();
    let deadline = deadline.min(Instant::now() + VACATED);
    loop {
        let listener = TcpListener::bind(&own[..]).or_else(|e| match e.kind() {
            io::ErrorKind::AddrInUse => Err(e),
            // A name that a network translates, like a service's.
            _ => TcpListener::bind((IpAddr::from([0, 0, 0, 0]), at.port)),
        });
        match listener {
            Ok(listener) => return Ok(listener),
            Err(_) if Instant::now() < deadline => std::thread::sleep(AGAIN),
            Err(e) => {
                return Err(failed(format!(
                    "rank 0 cannot listen on {}:{}: {e}; choose another MASTER_PORT",
                    at.host, at.port
                )));
            }
        }
    }
}

/// Try until rank 0 listens.
fn reach(at: &Rendezvous, deadline: Instant) -> Result<TcpStream> {
    let mut last = String::from("its name is not known");
    while Instant::now() < deadline {
        let addresses = (at.host.as_str(), at.port).to_socket_addrs();
        for address in addresses.into_iter().flatten() {
            match TcpStream::connect_timeout(&address, GREETING) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e.to_string(),
            }
        }
        std::thread::sleep(AGAIN);
    }
    Err(failed(format!(
        "rank {} cannot reach rank 0 at {}:{}: {last}; see MASTER_ADDR and MASTER_PORT, and whether rank 0 has started",
        at.rank, at.host, at.port
    )))
}

fn greet(stream: &mut TcpStream, at: &Rendezvous, port: u16) -> io::Result<()> {
    let Rendezvous {
        rank, size, run, ..
    } = at;
    writeln!(stream, "{MAGIC} {run} {rank} {size} {port}")
}

fn welcome(mut stream: TcpStream, table: &str, timing: Timing) -> io::Result<Link> {
    writeln!(stream, "welcome {table}")?;
    Link::new(stream, timing)
}

/// What was answered after "welcome".
fn answered(said: &str) -> std::result::Result<&str, &str> {
    match said.split_once(' ') {
        Some(("welcome", table)) => Ok(table),
        Some((_, why)) => Err(why),
        None => Err(said),
    }
}

/// One line, byte by byte: what follows it is not ours to read.
fn line(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut one = BufReader::with_capacity(1, stream.try_clone()?);
    io::Read::take(&mut one, MAX_LINE).read_until(b'\n', &mut bytes)?;
    match bytes.pop() {
        Some(b'\n') => String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Take in the ranks `wanted`; `Err` names who did not come.
fn gather(
    listener: &TcpListener,
    at: &Rendezvous,
    wanted: std::ops::Range<usize>,
    come: &mut [Option<(TcpStream, SocketAddr)>],
    deadline: Instant,
) -> std::result::Result<(), String> {
    let absent = |come: &[Option<_>]| -> Vec<String> {
        let missing = wanted.clone().filter(|&rank| come[rank].is_none());
        missing.map(|rank| rank.to_string()).collect()
    };
    let _ = listener.set_nonblocking(true);
    while !absent(come).is_empty() {
        match listener.accept() {
            Ok((stream, peer)) => match greeted(stream, peer, at, &wanted, come) {
                Ok((rank, stream, address)) => come[rank] = Some((stream, address)),
                // Refused, with a reason; whoever it was disturbs nobody here.
                Err(_) => continue,
            },
            Err(_) if Instant::now() >= deadline => {
                let absent = absent(come);
                let word = if absent.len() == 1 { "rank" } else { "ranks" };
                return Err(format!("{word} {} of {}", absent.join(", "), at.size));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}

/// Read a greeting; refuse who does not belong here.
fn greeted(
    mut stream: TcpStream,
    peer: SocketAddr,
    at: &Rendezvous,
    wanted: &std::ops::Range<usize>,
    come: &[Option<(TcpStream, SocketAddr)>],
) -> io::Result<(usize, TcpStream, SocketAddr)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_write_timeout(Some(GREETING))?;
    let said = line(&mut stream)?;
    let words: Vec<&str> = said
        .strip_prefix(MAGIC)
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let refusal = match words[..] {
        [run, rank, size, port] => {
            let numbers = (rank.parse(), size.parse::<usize>(), port.parse());
            match numbers {
                _ if run != at.run => format!("this is run {}, not {run}", at.run),
                (Ok(rank), Ok(size), Ok(port)) if size == at.size && wanted.contains(&rank) => {
                    if come[rank].is_none() {
                        return Ok((rank, stream, SocketAddr::new(peer.ip(), port)));
                    }
                    format!("rank {rank} is here already: two processes have the same RANK")
                }
                (Ok(_), Ok(size), _) if size != at.size => {
                    format!(
                        "here are {} ranks, there {size}: WORLD_SIZE differs",
                        at.size
                    )
                }
                _ => format!("rank {rank} is not awaited here"),
            }
        }
        _ => "another version, or no rank at all".to_owned(),
    };
    let _ = writeln!(stream, "no {refusal}");
    Err(io::Error::other(refusal))
}
