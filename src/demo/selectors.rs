//! The demo's selectors: processes of this program that follow one workers file and each other.
//!
//! Each has its own process, so that one can be killed without a word, as by the kernel or a power cut. None outlives
//! the demo: their standard input is a pipe from here, and they end with it.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::{
    DemoError,
    knowledge::{self, Knowledge, PartitionDump, PartitionLoads},
};

/// The recommended policy, which an unconfigured selector does not run.
const POLICY: &str = "worker_selection: {aggregated: mine, instances: [{name: mine, type: work-ahead}]}\n";

/// Ports are taken from here: below those that outgoing connections get.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Longest time for one to go after it was told to.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two looks at one that starts.
const LOOK: Duration = Duration::from_millis(10);

/// The selectors, numbered from 0.
#[derive(Debug)]
pub struct Selectors {
    program: PathBuf,
    client: reqwest::Client,
    members: Vec<Member>,
    // After the members: it is removed when they are gone.
    folder: TemporaryFolder,
}

#[derive(Debug)]
struct Member {
    url: String,
    http_port: u16,
    sync_port: u16,
    process: Mutex<Option<Child>>,
}

#[derive(Debug, Deserialize)]
struct PeersStatus {
    #[serde(default)]
    peers: Vec<PeerStatus>,
}

#[derive(Debug, Deserialize)]
struct PeerStatus {
    state: String,
}

impl Selectors {
    /// Starts `count` selectors that follow a file with the content `workers`.
    ///
    /// # Errors
    /// The file cannot be written, or a process cannot be started.
    pub fn start(count: usize, program: PathBuf, workers: &str, client: reqwest::Client) -> Result<Self, DemoError> {
        let folder = TemporaryFolder::create().map_err(|source| DemoError::io("temporary folder", source))?;
        std::fs::write(folder.workers_file(), workers).map_err(|source| DemoError::io("workers file", source))?;
        std::fs::write(folder.policy_file(), POLICY).map_err(|source| DemoError::io("policy file", source))?;
        let ports = free_ports(2 * count).map_err(|source| DemoError::io("selectors' sockets", source))?;
        let members = ports.chunks(2).map(|ports| Member {
            url: format!("http://127.0.0.1:{}", ports[0]),
            http_port: ports[0],
            sync_port: ports[1],
            process: Mutex::default(),
        });
        let selectors = Self { program, client, members: members.collect(), folder };
        for number in 0..count {
            selectors.launch(number)?;
        }
        Ok(selectors)
    }

    /// Base URLs, by number.
    pub fn urls(&self) -> Vec<String> {
        self.members.iter().map(|member| member.url.clone()).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.members.len()
    }

    /// The workers file they follow.
    pub fn workers_file(&self) -> PathBuf {
        self.folder.workers_file()
    }

    /// Starts the process of one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn launch(&self, number: usize) -> Result<(), DemoError> {
        let member = &self.members[number];
        let started = self.command(number).and_then(|mut command| command.spawn());
        *member.process.lock() = Some(started.map_err(|source| DemoError::io("selector's process", source))?);
        Ok(())
    }

    fn command(&self, number: usize) -> io::Result<Command> {
        let member = &self.members[number];
        let log = OpenOptions::new().create(true).append(true).open(self.log(number))?;
        let mut command = Command::new(&self.program);
        // What is set for the user's own selectors is not meant for these.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("POINTSMAN_") || name.starts_with("DYN_")) {
                command.env_remove(name);
            }
        }
        command
            .args(["selector", "--host", "127.0.0.1", "--end-with-stdin"])
            .args(["--port", &member.http_port.to_string()])
            .arg("--workers-file")
            .arg(self.workers_file())
            .arg("--router-policy-config")
            .arg(self.folder.policy_file());
        let others = self.members.iter().filter(|other| other.sync_port != member.sync_port);
        let others: Vec<String> = others.map(|other| format!("tcp://127.0.0.1:{}", other.sync_port)).collect();
        if !others.is_empty() {
            command
                .args(["--replica-sync-host", "127.0.0.1", "--replica-sync-port", &member.sync_port.to_string()])
                .args(["--replica-sync-peers", &others.join(","), "--advertise-url", &member.url])
                .args(["--ready-requires", "index,catalog,peers"]);
        }
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the demo, which then tells them.
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }

    fn log(&self, number: usize) -> PathBuf {
        self.folder.0.join(format!("selector-{number}.log"))
    }

    /// Waits until one is ready.
    ///
    /// # Errors
    /// It ended.
    pub async fn ready(&self, number: usize) -> Result<(), DemoError> {
        let url = format!("{}/readyz", self.members[number].url);
        loop {
            if self.has_ended(number) {
                let log = std::fs::read_to_string(self.log(number)).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it said nothing");
                return Err(DemoError::Answer(format!("selector {number} ended: {last}")));
            }
            let answer = self.client.get(&url).timeout(ANSWER_TIMEOUT).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    }

    fn has_ended(&self, number: usize) -> bool {
        let mut process = self.members[number].process.lock();
        process.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)))
    }

    /// Waits until each is connected to all others.
    pub async fn meshed(&self) {
        for member in &self.members {
            let connected = async || {
                let status: PeersStatus = self.get(&format!("{}/replica_sync/status", member.url)).await.ok()?;
                let connected = status.peers.iter().filter(|peer| peer.state == "connected").count();
                (connected + 1 == self.members.len()).then_some(())
            };
            while self.members.len() > 1 && connected().await.is_none() {
                sleep(LOOK).await;
            }
        }
    }

    /// Live bookings of one; `None` when it does not answer.
    pub async fn live_bookings(&self, number: usize) -> Option<u64> {
        let loads: Vec<PartitionLoads> = self.get(&format!("{}/loads", self.members[number].url)).await.ok()?;
        Some(knowledge::bookings(&loads).values().sum())
    }

    /// Everything one knows.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn knowledge(&self, number: usize) -> Result<Knowledge, DemoError> {
        let url = &self.members[number].url;
        let loads: Vec<PartitionLoads> = self.get(&format!("{url}/loads")).await?;
        let dump: BTreeMap<String, PartitionDump> = self.get(&format!("{url}/dump")).await?;
        Ok(Knowledge { bookings: knowledge::bookings(&loads), blocks: knowledge::blocks(&dump) })
    }

    async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, DemoError> {
        let answer = self.client.get(url).timeout(ANSWER_TIMEOUT).send().await;
        let answer = answer.and_then(reqwest::Response::error_for_status);
        let answer = answer.map_err(|error| DemoError::http("selector", error))?;
        answer.json().await.map_err(|error| DemoError::http("selector", error))
    }

    /// Ends the process of one with SIGKILL: it says goodbye to nobody.
    ///
    /// # Errors
    /// The system refuses.
    pub async fn kill(&self, number: usize) -> Result<(), DemoError> {
        let process = self.members[number].process.lock().take();
        let Some(mut process) = process else { return Ok(()) };
        process.kill().await.map_err(|source| DemoError::io("selector's process", source))
    }

    /// Tells all to go and waits until they are gone.
    pub async fn stop(self) {
        let mut leaving = Vec::new();
        for member in &self.members {
            let Some(mut process) = member.process.lock().take() else { continue };
            drop(process.stdin.take());
            leaving.push(process);
        }
        for mut process in leaving {
            // One that does not go in time is killed when its handle is dropped.
            if !matches!(timeout(LEAVE_TIMEOUT, process.wait()).await, Ok(Ok(_))) {
                tracing::warn!("selector killed: it did not stop in time");
            }
        }
    }
}

/// So many different ports that are free now.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let mut held = Vec::with_capacity(count);
    let mut last = None;
    for _ in 0..1000 {
        if held.len() == count {
            break;
        }
        let port = fastrand::u16(PORTS);
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => held.push((port, listener)),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if held.len() < count => Err(error),
        _ => Ok(held.into_iter().map(|(port, _)| port).collect()),
    }
}

/// A folder that goes with its owner.
#[derive(Debug)]
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn create() -> io::Result<Self> {
        let name = format!("pointsman-demo-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn workers_file(&self) -> PathBuf {
        self.path().join("workers.yaml")
    }

    fn policy_file(&self) -> PathBuf {
        self.path().join("policy.yaml")
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "temporary folder not removed");
        }
    }
}
