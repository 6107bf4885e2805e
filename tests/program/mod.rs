//! The real binary as a process, on ports the system chooses, with an environment of its own.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeMap,
    io::Write,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{sys::signal, unistd::Pid};
use serde_json::Value;

#[path = "../golden_runner/client.rs"]
pub mod client;

pub mod reference;

use client::{Request, Response};

/// Longest wait for anything; generous, because machines are slow and busy.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until `probe` has an answer; `what` names it in the failure.
pub fn wait_for<R>(what: &str, mut probe: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = probe() {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A command of the binary whose environment holds no setting but `variables`.
pub fn command(words: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman"));
    command.args(words).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("DYN_") || n.starts_with("POINTSMAN_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_BACKTRACE").envs(variables.iter().copied());
    command
}

/// A running process of the binary; killed when dropped.
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it; its output goes to a file in `directory`.
    pub fn start(directory: &Path, words: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(directory, &mut command(words, variables))
    }

    /// Starts any command in the same way.
    pub fn spawn(directory: &Path, command: &mut Command) -> Self {
        let log = directory.join(format!("program-{}.log", fastrand::u64(..)));
        let out = std::fs::File::create(&log).unwrap();
        let child = command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap();
        Self { child, log }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: signal::Signal) {
        signal::kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end.
    pub fn exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "still running:\n{}", self.log());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A selector that listens.
pub struct Selector {
    pub program: Program,
    pub address: SocketAddr,
}

impl Selector {
    /// Starts one on a free port of loopback and waits until it listens.
    pub fn start(directory: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_on(0, directory, flags, variables)
    }

    /// Starts one on `port`.
    pub fn start_on(port: u16, directory: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let port = port.to_string();
        let mut words = vec!["selector", "--host", "127.0.0.1", "--port", &port];
        words.extend_from_slice(flags);
        Self::listening(Program::start(directory, &words, variables))
    }

    /// Waits until a program listens.
    pub fn listening(mut program: Program) -> Self {
        let address = wait_for("the line that tells the address", || {
            let log = program.log();
            if let Some(status) = program.child.try_wait().unwrap() {
                panic!("ended with {status}:\n{log}");
            }
            let (_, rest) = log.split_once("listening address=")?;
            rest.split_once(['\n', ' '])?.0.parse().ok()
        });
        Self { program, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<Response> {
        client::send(self.address.port(), &Request::json(method, path, body), PATIENCE)
    }

    /// The status and JSON of an answer.
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let answer =
            self.send(method, path, body).unwrap_or_else(|e| panic!("{method} {path}: {e}\n{}", self.program.log()));
        (answer.status, answer.json().unwrap_or(Value::Null))
    }

    pub fn get(&self, path: &str) -> Value {
        self.call("GET", path, None).1
    }

    /// Endpoint by worker id.
    pub fn workers(&self) -> BTreeMap<u64, String> {
        let list = self.get("/workers");
        let endpoint = |w: &Value| w["endpoint"].as_str().unwrap_or_default().to_owned();
        list.as_array().unwrap().iter().map(|w| (w["worker_id"].as_u64().unwrap(), endpoint(w))).collect()
    }

    /// The catalog's entry of `owner`.
    pub fn owner(&self, owner: &str) -> Option<Value> {
        self.get("/catalog")["owners"].as_array().unwrap().iter().find(|o| o["owner"] == owner).cloned()
    }

    pub fn wait_for_workers(&self, ids: &[u64]) {
        wait_for(&format!("workers {ids:?}"), || self.workers().keys().eq(ids.iter()).then_some(()));
    }
}

/// Replaces `path` in one step.
pub fn replace(path: &Path, content: &str) {
    let other = path.with_extension("tmp");
    let mut file = std::fs::File::create(&other).unwrap();
    file.write_all(content.as_bytes()).unwrap();
    std::fs::rename(other, path).unwrap();
}

/// Whether anybody listens on `port` of loopback.
pub fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
