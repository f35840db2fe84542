//! Programs in CPython-in-WebAssembly: what hostile ones come to, and that `code` cannot be talked into a reward.
//!
//! Needs the interpreter installed (`slime-host plugin python`), or the folder of its files in
//! `SLIME_PYTHON_ARTIFACTS`, so it runs on demand: `cargo test -p slime-runtime --test all programs -- --ignored`.

use crate::support::{component, limits, root, runtime, score_by};
use futures::executor::block_on;
use slime_core::ports::ScoreRequest;
use slime_runtime::code::{self, CodeExec, Ending, Program, Python, Ran};
use slime_runtime::{Grants, Limits, Plugin, Services};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

fn python() -> &'static Python {
    static PYTHON: OnceLock<Python> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let dir = code::default_dir().unwrap();
        if let (false, Some(files)) = (dir.is_dir(), std::env::var_os("SLIME_PYTHON_ARTIFACTS")) {
            let files = std::path::PathBuf::from(files);
            code::install(&code::Artifacts(&files), &dir, |step| eprintln!("{step}"))
                .unwrap_or_else(|error| panic!("{error}"));
        }
        Python::open(runtime(), &dir).unwrap_or_else(|error| panic!("{error}"))
    })
}

fn program(source: &str) -> Program {
    Program {
        cpu: Duration::from_millis(1000),
        memory_bytes: 160 << 20,
        ..Program::new(source)
    }
}

fn run(program: Program) -> Ran {
    block_on(python().run(program)).unwrap_or_else(|error| panic!("{error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Source, and how it must end.
const HOSTILE: [(&str, Ending); 37] = [
    ("while True: pass", Ending::TimedOut),
    (
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
        Ending::TimedOut,
    ),
    ("7 ** (10 ** 8)", Ending::TimedOut),
    (
        "import itertools\nsum(1 for _ in itertools.count())",
        Ending::TimedOut,
    ),
    (
        "def f(n): return 1 if n < 2 else f(n - 1) + f(n - 2)\nf(90)",
        Ending::TimedOut,
    ),
    (
        "import decimal\ndecimal.getcontext().prec = 10 ** 7\ndecimal.Decimal(2).sqrt()",
        Ending::TimedOut,
    ),
    ("import time\ntime.sleep(60)", Ending::TimedOut),
    (
        "import asyncio\nasyncio.run(asyncio.sleep(60))",
        Ending::Failed,
    ),
    (
        "a = []\nwhile True: a.append(bytearray(1 << 20))",
        Ending::OutOfMemory,
    ),
    ("'x' * 10 ** 9", Ending::OutOfMemory),
    (
        "d = {}\ni = 0\nwhile True:\n  d[i] = str(i) * 100\n  i += 1",
        Ending::OutOfMemory,
    ),
    (
        "import zlib\nz = zlib.compress(bytes(1 << 24))\nb = []\nwhile True: b.append(zlib.decompress(z))",
        Ending::OutOfMemory,
    ),
    ("def f(n): return f(n + 1)\nf(0)", Ending::Failed),
    ("while True: print('z' * 1000)", Ending::OutputLimit),
    (
        "import sys\nwhile True: sys.stderr.write('z' * 1000)",
        Ending::OutputLimit,
    ),
    ("import sys\nsys.exit(7)", Ending::Failed),
    ("raise ValueError('no')", Ending::Failed),
    ("this is no python", Ending::Failed),
    ("print(open('/etc/passwd').read())", Ending::Failed),
    ("import os\nos.listdir('/')", Ending::Failed),
    ("open('/tmp/x', 'w').write('x')", Ending::Failed),
    (
        "open('/usr/local/lib/evil.py', 'w').write('x')",
        Ending::Failed,
    ),
    (
        "import os\nos.remove('/usr/local/lib/python315.zip')",
        Ending::Failed,
    ),
    (
        "import os\nos.truncate('/usr/local/lib/python315.zip', 0)",
        Ending::Failed,
    ),
    (
        "import socket\nsocket.socket().connect(('127.0.0.1', 80))",
        Ending::Failed,
    ),
    (
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1/')",
        Ending::Failed,
    ),
    ("import os\nos.fork()", Ending::Failed),
    ("import subprocess\nsubprocess.run(['id'])", Ending::Failed),
    ("import os\nos.system('id')", Ending::Failed),
    (
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        Ending::Failed,
    ),
    (
        "import threading\nthreading.Thread(target=print).start()",
        Ending::Failed,
    ),
    ("import ctypes\nctypes.string_at(0)", Ending::Failed),
    (
        "import signal, os\nos.kill(os.getpid(), signal.SIGKILL)",
        Ending::Failed,
    ),
    (
        "import os\nassert not [k for k in os.environ if k not in ('HOME', 'TMPDIR', 'PYTHONTZPATH')]",
        Ending::Finished,
    ),
    ("import os\nos._exit(0)", Ending::Finished),
    ("print('ok')", Ending::Finished),
    (
        "import numpy, sympy\nx = sympy.Symbol('x')\nassert sympy.expand((x + 1) ** 2) == x ** 2 + 2 * x + 1 and numpy.arange(4).sum() == 6",
        Ending::Finished,
    ),
];

#[test]
#[ignore = "needs the interpreter installed"]
fn programs_of_the_corpus_end_as_they_must_within_their_budgets() {
    let mut wrong = Vec::new();
    for (source, ending) in HOSTILE {
        let start = Instant::now();
        let ran = run(program(source));
        if ran.ending != ending {
            let said = text(&ran.stderr);
            let last = said.lines().last().unwrap_or_default();
            wrong.push(format!(
                "{source:?}: {:?}, wanted {ending:?}; {last}",
                ran.ending
            ));
        }
        assert!(
            ran.cpu <= Duration::from_millis(1200),
            "{source:?} ran for {:?}",
            ran.cpu
        );
        assert!(ran.peak_memory_bytes <= 160 << 20, "{source:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{source:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "needs the interpreter installed"]
fn programs_start_clean_and_repeat_themselves() {
    run(program(
        "import builtins, sys\nbuiltins.print = None\nsys.stdout = None\nsys.modules.clear()",
    ));
    let chance =
        "import random, time, os\nprint(random.random(), hash('x'), time.time(), os.urandom(4))";
    let first = run(program(chance));
    assert_eq!(first.ending, Ending::Finished, "{}", text(&first.stderr));
    assert_eq!(first.stdout, run(program(chance)).stdout);
    let reads = Program {
        stdin: b"3 4\n".to_vec(),
        ..program("print(sum(map(int, input().split())))")
    };
    assert_eq!(text(&run(reads).stdout), "7\n");
    assert_eq!(run(program("import sys\nsys.exit(3)")).exit_code, 3);
}

#[test]
#[ignore = "needs the interpreter installed"]
fn programs_run_as_scripts_do() {
    let main = "if __name__ == '__main__':\n  print(1)\n2 + 2\n'not echoed'";
    assert_eq!(text(&run(program(main)).stdout), "1\n");
    for name in ["math", "sys", "numpy", "square", "TRIED", "_reactor", "gc"] {
        let ran = run(program(&format!("print({name})")));
        assert_eq!(ran.ending, Ending::Failed, "{name} is imported already");
        assert!(text(&ran.stderr).contains("NameError"), "{name}");
    }
    let said = text(&run(program("def f():\n  return 1 / 0\nf()")).stderr);
    let wanted =
        "Traceback (most recent call last):\n  File \"<program>\", line 3, in <module>\n    f()";
    assert!(said.starts_with(wanted), "{said}");
    assert!(
        said.ends_with("ZeroDivisionError: division by zero\n"),
        "{said}"
    );
}

fn code_plugin() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        let grants = Grants {
            code_exec: Some(slime_runtime::ProgramLimits {
                cpu: Duration::from_secs(1),
                ..Default::default()
            }),
            ..Grants::default()
        };
        let limits = Limits {
            host_calls: 1000,
            ..limits()
        };
        let plugin = runtime()
            .load(&component("plugins/code"), "code", limits, grants)
            .unwrap_or_else(|error| panic!("{error}"));
        plugin.serve(Services {
            code: Some(Arc::new(python().clone())),
            ..Services::default()
        });
        plugin
    })
}

#[test]
#[ignore = "needs the interpreter installed"]
fn every_case_of_the_code_plugin_holds() {
    let text = std::fs::read_to_string(root().join("plugins/code/cases.jsonl")).unwrap();
    let cases = code_plugin().run_cases(&text).unwrap();
    assert!(cases.len() >= 15);
    let wrong: Vec<_> = cases
        .iter()
        .filter(|case| !case.differences.is_empty())
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Prints what the accepted line of the plan asks for; an idle machine is needed for the numbers to mean anything.
#[test]
#[ignore = "a measurement: cargo test --release -p slime-runtime --test all programs_measured -- --ignored --nocapture"]
#[allow(clippy::print_stdout, reason = "a measurement")]
fn programs_measured() {
    let trivial = || run(program("assert 1 + 1 == 2"));
    (0..20).for_each(|_| drop(trivial()));
    let mut walls: Vec<Duration> = (0..300)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(trivial().ending, Ending::Finished);
            start.elapsed()
        })
        .collect();
    walls.sort_unstable();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..300).for_each(|_| drop(trivial())));
        }
    });
    println!(
        "a trivial program: median {:?}, p99 {:?}; {:.0} a second with four callers",
        walls[150],
        walls[297],
        1200.0 / start.elapsed().as_secs_f64()
    );
    let item = || ScoreRequest {
        response: "```python\nprint(int(input()) ** 2)\n```".into(),
        label: Some("[{\"input\": \"3\\n\", \"output\": \"9\\n\"}]".into()),
        ..ScoreRequest::default()
    };
    let mut walls: Vec<Duration> = (0..300)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(score_by(code_plugin(), item()).outcome.reward(), Some(1.0));
            start.elapsed()
        })
        .collect();
    walls.sort_unstable();
    println!(
        "`code` with one test: median {:?}, p99 {:?}",
        walls[150], walls[297]
    );
}
