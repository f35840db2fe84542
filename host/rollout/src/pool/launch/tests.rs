//! Real processes: this test program, started again as a server with a child of its own.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use tempfile::TempDir;

const PORT: &str = "SLIME_TEST_SERVER_PORT";
const SAY: &str = "SLIME_TEST_SERVER_SAY";

/// Not a test: what the tests below launch.
#[test]
#[ignore = "the server that other tests of this file start"]
fn a_server_to_launch() {
    if let Ok(words) = std::env::var(SAY) {
        eprintln!("{words}");
        std::process::exit(2);
    }
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    let mut child = std::process::Command::new("sleep")
        .arg("300")
        .spawn()
        .unwrap();
    println!("child={}", child.id());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
    for stream in listener.incoming().flatten() {
        let mut lines = BufReader::new(&stream).lines();
        while lines
            .next()
            .is_some_and(|line| line.is_ok_and(|l| !l.is_empty()))
        {}
        let body = r#"{"weight_version":"default"}"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        let _ = (&stream).write_all((head + body).as_bytes());
    }
    let _ = child.wait();
}

fn care() -> Care {
    Care {
        start_timeout: Duration::from_secs(20),
        interval: Duration::from_millis(20),
        backoff: Duration::from_millis(10),
        grace: Duration::from_secs(2),
        ..Care::default()
    }
}

fn spec(dir: &TempDir, index: usize, port: u16, say: Option<&str>) -> ServerSpec {
    let program = std::env::current_exe().unwrap().display().to_string();
    let test = "pool::launch::tests::a_server_to_launch";
    let argv = [
        program.as_str(),
        "--exact",
        test,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    let mut env = vec![(PORT.to_owned(), port.to_string())];
    env.extend(say.map(|words| (SAY.to_owned(), words.to_owned())));
    ServerSpec {
        name: format!("server-{index}"),
        address: Address::new("127.0.0.1", port),
        argv: argv.map(str::to_owned).to_vec(),
        env,
        log: dir.path().join(format!("{index}.log")),
    }
}

/// The `sleep` of each start, by what the server wrote.
fn children(log: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(log).unwrap();
    let numbers = text.lines().filter_map(|l| l.split("child=").nth(1));
    numbers.filter_map(|n| n.trim().parse().ok()).collect()
}

/// A process that is there and no zombie.
fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|text| {
        !text
            .rsplit(')')
            .next()
            .unwrap_or("")
            .trim()
            .starts_with('Z')
    })
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..500 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not come to that");
}

#[tokio::test]
async fn g12_a_killed_server_comes_back_on_its_port_and_nothing_outlives_the_fleet() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(Ipv4Addr::LOCALHOST.into(), 2).unwrap();
    let specs: Vec<_> = (0..2).map(|i| spec(&dir, i, ports[i], None)).collect();
    let fleet = Fleet::start(specs.clone(), care()).await.unwrap();
    let first = fleet.lives()[0].1.pid.unwrap();
    let orphan = children(&specs[0].log)[0];
    assert!(alive(first) && alive(orphan));

    let killed = Pid(first);
    killed.kill();
    until(|| {
        fleet.lives()[0].1.num_restarts == 1 && TcpStream::connect(("127.0.0.1", ports[0])).is_ok()
    })
    .await;
    assert!(
        !alive(orphan),
        "what a dead server leaves behind holds memory"
    );
    let life = fleet.lives()[0].1.clone();
    assert!(life.last_death.unwrap().contains("signal: 9"));
    assert_eq!(fleet.lives()[1].1.num_restarts, 0);

    let mut all: Vec<u32> = fleet.lives().iter().filter_map(|(_, l)| l.pid).collect();
    all.extend(specs.iter().flat_map(|s| children(&s.log)));
    fleet.stop().await;
    until(|| !all.iter().any(|&pid| alive(pid))).await;
    for port in ports {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

struct Pid(u32);

impl Pid {
    fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.0 as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn g12_a_host_that_vanishes_takes_its_servers_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_ports(Ipv4Addr::LOCALHOST.into(), 1).unwrap()[0];
    let spec = spec(&dir, 0, port, None);
    let mut group = Group::spawn(&spec).unwrap();
    until(|| spec.log.exists() && !children(&spec.log).is_empty()).await;
    let orphan = children(&spec.log)[0];
    // What the system does for a process that was killed: its end of the pipe is closed, no word is said.
    group.hang_up();
    let how = tokio::time::timeout(Duration::from_secs(8), group.ended())
        .await
        .unwrap();
    assert!(how.contains("signal: 15"), "{how}");
    until(|| !alive(orphan)).await;
}

#[tokio::test]
async fn a_flag_the_server_does_not_know_is_told_in_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(Ipv4Addr::LOCALHOST.into(), 2).unwrap();
    let words = "launch_server.py: error: unrecognized arguments: --mem-fracton 0.3";
    let specs = vec![
        spec(&dir, 0, ports[0], None),
        spec(&dir, 1, ports[1], Some(words)),
    ];
    let error = Fleet::start(specs.clone(), care())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("server-1: ") && error.contains(words),
        "{error}"
    );
    // The one that was well is not left behind.
    for pid in children(&specs[0].log) {
        until(|| !alive(pid)).await;
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut missing = spec(&dir, 0, 1, None);
    missing.argv[0] = "/no/such/python3".into();
    let error = Fleet::start(vec![missing], care())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("/no/such/python3"), "{error}");
}
