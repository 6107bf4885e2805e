//! A peer between: passes a selector's requests on, or does to some what a test wants.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Action {
    /// It is passed on.
    Pass,
    /// The answer breaks off in the middle.
    Cut,
    /// The connection ends without an answer.
    Close,
    /// This, as it stands, and then the end of the connection.
    Answer(Vec<u8>),
    /// This, and then zeros without end.
    Endless(Vec<u8>),
}

/// An answer with a body.
pub fn http(body: &[u8]) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

type Script = Arc<dyn Fn(&str, usize) -> Action + Send + Sync>;

/// The peer.
pub struct Peer {
    pub url: String,
    seen: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Peer {
    /// Passes requests on to `target`; `script` is asked for each, with its path and how often that was asked for before.
    pub async fn start(target: &str, script: impl Fn(&str, usize) -> Action + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (target, script): (_, Script) = (target.to_owned(), Arc::new(script));
        let paths = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(socket, target.clone(), Arc::clone(&script), Arc::clone(&paths)));
            }
        });
        Self { url, seen, task }
    }

    /// Paths that were asked for, with their queries.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Deals with the requests of one connection until one of them ends it. A client that leaves ends it too.
async fn serve(mut socket: TcpStream, target: String, script: Script, seen: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        // The export's name differs from run to run.
        let name = match path.split_once("export=") {
            Some((before, after)) => format!("{before}{}", after.split_once('&').map_or("", |(_, rest)| rest)),
            None => path.clone(),
        };
        let before = {
            let mut seen = seen.lock();
            seen.push(name.clone());
            seen.iter().filter(|other| **other == name).count() - 1
        };
        let action = script(&name, before);
        let passed = match action {
            Action::Close => return None,
            Action::Answer(answer) => {
                socket.write_all(&answer).await.ok()?;
                return None;
            }
            Action::Endless(begin) => {
                socket.write_all(&begin).await.ok()?;
                loop {
                    socket.write_all(&[0; 1 << 16]).await.ok()?;
                }
            }
            Action::Pass | Action::Cut => client.get(format!("{target}{path}")).send().await.ok()?,
        };
        let status = passed.status();
        let body = passed.bytes().await.ok()?;
        let mut answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        answer.extend_from_slice(&body);
        if matches!(action, Action::Cut) {
            answer.truncate(answer.len() - body.len().div_ceil(2));
            socket.write_all(&answer).await.ok()?;
            return None;
        }
        socket.write_all(&answer).await.ok()?;
    }
}
