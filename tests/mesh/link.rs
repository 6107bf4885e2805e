//! One direction of the mesh: a proxy between a publisher and one subscriber, which knows ZMTP well enough to lose,
//! delay and reorder whole messages.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, mpsc},
};

/// Bytes of a ZMTP greeting.
const GREETING: usize = 64;
/// Flags of a frame.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a link does to messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Of a thousand messages, so many are lost.
    pub lost: u32,
    /// Of a thousand, so many change places with the next.
    pub swapped: u32,
    /// Each comes this much later.
    pub delay: Duration,
    /// Nothing comes through, not even the beginning of a connection; connections stay.
    pub swallows: bool,
}

struct Shared {
    target: Mutex<SocketAddr>,
    faults: Mutex<Faults>,
    /// No connection is let through.
    is_cut: Mutex<bool>,
    /// Ends what is connected.
    cut: Notify,
    rng: Mutex<fastrand::Rng>,
}

/// The proxy.
pub struct Link {
    shared: Arc<Shared>,
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Link {
    /// A link to the publisher at `target`.
    pub async fn new(target: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            faults: Mutex::default(),
            is_cut: Mutex::new(false),
            cut: Notify::new(),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { shared, address, task }
    }

    /// What the subscriber follows.
    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    pub fn set_faults(&self, faults: Faults) {
        *self.shared.faults.lock() = faults;
    }

    /// Ends the connection and lets no other through.
    pub fn cut(&self) {
        *self.shared.is_cut.lock() = true;
        self.shared.cut.notify_waiters();
    }

    /// Heals everything.
    pub fn heal(&self) {
        *self.shared.is_cut.lock() = false;
        self.set_faults(Faults::default());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((subscriber, _)) = listener.accept().await else { return };
        if *shared.is_cut.lock() {
            continue;
        }
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let target = *shared.target.lock();
            let cut = shared.cut.notified();
            let Ok(publisher) = TcpStream::connect(target).await else { return };
            publisher.set_nodelay(true).unwrap();
            subscriber.set_nodelay(true).unwrap();
            let (from_publisher, to_publisher) = publisher.into_split();
            let (from_subscriber, to_subscriber) = subscriber.into_split();
            tokio::select! {
                () = cut => {}
                () = copy(from_subscriber, to_publisher) => {}
                () = messages(from_publisher, to_subscriber, &shared) => {}
            }
        });
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    tokio::io::copy(&mut from, &mut to).await.ok();
}

/// One message or command: all its frames as they came.
async fn unit(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(bool, Vec<u8>)> {
    let mut unit = Vec::new();
    loop {
        let flags = from.read_u8().await?;
        unit.push(flags);
        let length = if flags & LONG == 0 {
            let length = from.read_u8().await?;
            unit.push(length);
            u64::from(length)
        } else {
            let length = from.read_u64().await?;
            unit.extend(length.to_be_bytes());
            length
        };
        let start = unit.len();
        unit.resize(start + length as usize, 0);
        from.read_exact(&mut unit[start..]).await?;
        if flags & COMMAND != 0 {
            return Ok((true, unit));
        }
        if flags & MORE == 0 {
            return Ok((false, unit));
        }
    }
}

async fn messages(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let (queue, mut queued) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let write = async {
        while let Some((due, unit)) = queued.recv().await {
            tokio::time::sleep_until(due.into()).await;
            if to.write_all(&unit).await.is_err() {
                return;
            }
        }
    };
    let read = async {
        let mut greeting = vec![0; GREETING];
        if from.read_exact(&mut greeting).await.is_err() {
            return;
        }
        if shared.faults.lock().swallows {
            // Never answered, as by a host that is cut off.
            return std::future::pending().await;
        }
        queue.send((Instant::now(), greeting)).ok();
        let mut held: Option<Vec<u8>> = None;
        while let Ok((is_command, unit)) = unit(&mut from).await {
            let faults = *shared.faults.lock();
            if faults.swallows {
                continue;
            }
            let due = Instant::now() + faults.delay;
            if !is_command {
                if shared.rng.lock().u32(..1000) < faults.lost {
                    continue;
                }
                if held.is_none() && shared.rng.lock().u32(..1000) < faults.swapped {
                    held = Some(unit);
                    continue;
                }
            }
            queue.send((due, unit)).ok();
            if !is_command && let Some(later) = held.take() {
                queue.send((due, later)).ok();
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
