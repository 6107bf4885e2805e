//! The program under test as a process, and fake peers beside it.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    client::{self, Request, Response},
    python::python,
};

pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Which program a server runs.
#[derive(Clone, Copy)]
pub enum Program {
    /// `POINTSMAN_GOLDEN_CMD`, ours without it.
    First,
    /// `POINTSMAN_GOLDEN_CMD_B`, the first without it.
    Second,
    /// Ours, whatever is given.
    Ours,
    /// The reference's selector.
    Reference,
    /// `POINTSMAN_GOLDEN_INDEXER_CMD`, ours with the indexer's face without it.
    Indexer,
}

impl Program {
    /// The command line; `{port}` in a given one is replaced.
    fn words(self, port: u16) -> Vec<String> {
        let first = std::env::var("POINTSMAN_GOLDEN_CMD").ok();
        let given = match self {
            Self::First => first,
            Self::Second => std::env::var("POINTSMAN_GOLDEN_CMD_B").ok().or(first),
            Self::Ours => None,
            Self::Reference => Some(format!("{} -m dynamo.select_service --port {{port}}", python().display())),
            Self::Indexer => std::env::var("POINTSMAN_GOLDEN_INDEXER_CMD").ok(),
        };
        if let Some(command) = given {
            return command.split_whitespace().map(|w| w.replace("{port}", &port.to_string())).collect();
        }
        let port = port.to_string();
        let mut words = vec![env!("CARGO_BIN_EXE_pointsman"), "selector", "--port", &port];
        if let Self::Indexer = self {
            words.extend(["--face", "indexer"]);
        }
        words.into_iter().map(str::to_owned).collect()
    }
}

/// A running selector; killed when dropped.
pub struct Server {
    child: Child,
    pub port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts the first program on `port`.
    pub fn start(port: u16, args: &[String], env: &BTreeMap<String, String>, dir: &Path) -> Self {
        Self::start_program(Program::First, port, args, env, dir)
    }

    /// Starts a program on `port`.
    pub fn start_program(
        program: Program,
        port: u16,
        args: &[String],
        env: &BTreeMap<String, String>,
        dir: &Path,
    ) -> Self {
        let mut words = program.words(port);
        words.extend_from_slice(args);
        let log = dir.join(format!("server-{port}.log"));
        let out = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(dir).stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("DYN_") || n.starts_with("POINTSMAN_")) {
            command.env_remove(name);
        }
        command.envs(env);
        let child = command.spawn().unwrap_or_else(|e| panic!("start {words:?}: {e}"));
        Self { child, port, log }
    }

    /// Waits until `/health` answers 200.
    pub fn wait_healthy(&mut self) -> Result<(), String> {
        let end = Instant::now() + TIMEOUT;
        let health = Request::json("GET", "/health", None);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Err(format!("server exited with {status}: {}", self.tail()));
            }
            if client::send(self.port, &health, Duration::from_secs(2)).is_ok_and(|r| r.status == 200) {
                return Ok(());
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Err(format!("server did not become healthy: {}", self.tail()))
    }

    /// Waits for the process to exit by itself.
    pub fn wait_exit(&mut self) -> Result<i32, String> {
        let end = Instant::now() + TIMEOUT;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Ok(status.code().unwrap_or(-1));
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Err("server did not exit".into())
    }

    pub fn http(&self, method: &str, path: &str, body: Option<&serde_json::Value>) -> std::io::Result<Response> {
        client::send(self.port, &Request::json(method, path, body), TIMEOUT)
    }

    /// Ends the process as a user would, and waits for it.
    pub fn interrupt(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).ok();
        self.wait_exit().ok();
    }

    /// All it printed so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn tail(&self) -> String {
        let text = self.output();
        text.chars().rev().take(1200).collect::<Vec<_>>().into_iter().rev().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Serves fixed JSON documents by path.
pub struct FakePeer {
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FakePeer {
    pub fn start(documents: BTreeMap<String, serde_json::Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(stream) = stream {
                    Self::answer(stream, &documents).ok();
                }
            }
        });
        Self { port, stop, thread: Some(thread) }
    }

    fn answer(mut stream: TcpStream, documents: &BTreeMap<String, serde_json::Value>) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut head = Vec::new();
        let mut byte = [0u8; 1];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
            head.push(byte[0]);
        }
        let path = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_owned();
        let (status, body) = match documents.get(&path) {
            Some(document) => ("200 OK", document.to_string()),
            None => ("404 Not Found", r#"{"error":"not found"}"#.to_owned()),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        TcpStream::connect(("127.0.0.1", self.port)).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
