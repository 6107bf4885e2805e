//! The reference's selector as a process.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use super::{PATIENCE, Program, client, client::Request, wait_for};

#[path = "../golden_runner/ports.rs"]
pub mod ports;
#[path = "python.rs"]
mod python;

pub use python::python;

/// A running selector of the reference, on loopback alone as far as it lets one choose.
pub struct Reference {
    pub program: Program,
    pub port: u16,
    publisher_port: Option<u16>,
}

impl Reference {
    /// Starts one, with replica sync or without, and waits until it answers.
    pub fn start(directory: &Path, sync: bool) -> Self {
        loop {
            let publisher_port = sync.then(ports::free);
            if let Some(started) = Self::start_on(directory, ports::free(), publisher_port) {
                return started;
            }
        }
    }

    /// Kills it and starts another in its place.
    pub fn restart(&mut self, directory: &Path) {
        self.program.signal(nix::sys::signal::Signal::SIGKILL);
        self.program.exit();
        let again = Self::start_on(directory, self.port, self.publisher_port);
        *self = again.expect("its ports were free a moment ago");
    }

    /// Starts one on these ports. `None` when it ended at once, as it does when somebody else took a port meanwhile.
    pub fn start_on(directory: &Path, port: u16, publisher_port: Option<u16>) -> Option<Self> {
        let mut command = Command::new(python());
        command.args(["-m", "dynamo.select_service", "--port", &port.to_string()]).stdin(Stdio::null());
        if let Some(port) = publisher_port {
            command.args(["--replica-sync-port", &port.to_string()]);
        }
        for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("DYN_")) {
            command.env_remove(name);
        }
        command.env("DYN_ROUTER_USE_KV_EVENTS", "false");
        let mut program = Program::spawn(directory, &mut command);
        let is_up = wait_for("the reference to answer", || {
            if program.ended().is_some() {
                return Some(false);
            }
            let health = client::send(port, &Request::json("GET", "/health", None), PATIENCE);
            health.is_ok_and(|answer| answer.status == 200).then_some(true)
        });
        if !is_up {
            let log = program.log();
            assert!(log.contains("ddress already in use"), "{log}");
        }
        is_up.then_some(Self { program, port, publisher_port })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn publisher_port(&self) -> Option<u16> {
        self.publisher_port
    }

    /// Where it publishes, if it does.
    pub fn publisher(&self) -> Option<String> {
        Some(format!("tcp://127.0.0.1:{}", self.publisher_port?))
    }
}
