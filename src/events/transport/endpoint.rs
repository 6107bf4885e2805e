//! ZMQ endpoints and the byte streams behind them: `tcp://host:port` (names, IPv4, bracketed IPv6) and `ipc://path`.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::AsyncWrite,
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream},
    time::{Instant, timeout_at},
};
use tokio_util::io::poll_read_buf;

use super::TransportError;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A parsed endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A host name or address without brackets, looked up at each connect, and a port.
    Tcp { host: String, port: u16 },
    /// A socket file; on Linux a name that begins with `@` has no file.
    Ipc(PathBuf),
}

impl Endpoint {
    /// Parses an endpoint to connect to.
    pub(super) fn parse(endpoint: &str) -> Result<Self, TransportError> {
        let parsed = Self::parse_any(endpoint)?;
        match &parsed {
            Self::Tcp { host, port } if host == "*" || *port == 0 => {
                Err(invalid(endpoint, "a wildcard can be bound, not connected to"))
            }
            _ => Ok(parsed),
        }
    }

    /// Parses an endpoint to bind, where `*` stands for all interfaces or any port.
    pub(super) fn parse_bind(endpoint: &str) -> Result<Self, TransportError> {
        match endpoint.strip_suffix(":*") {
            Some(host) => Self::parse_any(&format!("{host}:0")).map_err(|_| invalid(endpoint, "missing TCP host")),
            None => Self::parse_any(endpoint),
        }
    }

    fn parse_any(endpoint: &str) -> Result<Self, TransportError> {
        let (scheme, address) = endpoint.split_once("://").ok_or_else(|| invalid(endpoint, "missing scheme"))?;
        if address.is_empty() {
            return Err(invalid(endpoint, "missing address"));
        }
        match scheme {
            "tcp" => {
                let (host, port) = match address.strip_prefix('[') {
                    Some(rest) => {
                        let (host, rest) =
                            rest.split_once(']').ok_or_else(|| invalid(endpoint, "missing closing `]`"))?;
                        (host, rest.strip_prefix(':').ok_or_else(|| invalid(endpoint, "missing TCP port"))?)
                    }
                    None => address.rsplit_once(':').ok_or_else(|| invalid(endpoint, "missing TCP port"))?,
                };
                if host.is_empty() {
                    return Err(invalid(endpoint, "missing TCP host"));
                }
                let port = port.parse().map_err(|error| invalid(endpoint, &format!("invalid TCP port: {error}")))?;
                Ok(Self::Tcp { host: host.to_owned(), port })
            }
            "ipc" => Ok(Self::Ipc(match address.strip_prefix('@') {
                Some(name) if !name.is_empty() => PathBuf::from(format!("\0{name}")),
                _ => PathBuf::from(address),
            })),
            _ => Err(invalid(endpoint, &format!("unsupported scheme `{scheme}`"))),
        }
    }

    /// Opens a connection before `deadline`. Every address a name has is tried, each with its share of the time.
    pub(super) async fn connect(&self, deadline: Instant, idle_probe: Duration) -> Result<Stream, TransportError> {
        match self {
            Self::Ipc(path) => match timeout_at(deadline, UnixStream::connect(path)).await {
                Ok(connected) => connected.map(Stream::Ipc).map_err(|source| self.failed("connect to", source)),
                Err(_) => Err(TransportError::Timeout("connect")),
            },
            Self::Tcp { host, port } => {
                let addresses: Vec<_> =
                    match timeout_at(deadline, tokio::net::lookup_host((host.as_str(), *port))).await {
                        Ok(found) => found.map_err(|source| self.failed("look up", source))?.collect(),
                        Err(_) => return Err(TransportError::Timeout("name lookup")),
                    };
                let mut failure = TransportError::Endpoint(format!("{self}: the name has no address"));
                for (index, address) in addresses.iter().enumerate() {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
                    failure = match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
                        Ok(Ok(stream)) => return Ok(Stream::tcp(stream, idle_probe)),
                        Ok(Err(source)) => self.failed("connect to", source),
                        Err(_) => TransportError::Timeout("connect"),
                    };
                }
                Err(failure)
            }
        }
    }

    fn failed(&self, what: &str, source: io::Error) -> TransportError {
        TransportError::Io { context: format!("could not {what} {self}"), source }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc(path) => write!(f, "ipc://{}", path.to_string_lossy().replace('\0', "@")),
        }
    }
}

fn invalid(endpoint: &str, why: &str) -> TransportError {
    TransportError::Endpoint(format!("invalid ZMQ endpoint `{endpoint}`: {why}"))
}

/// One connected byte stream.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Ipc(UnixStream),
}

impl Stream {
    /// Sends small messages at once, and lets the kernel find a peer whose host is gone: `idle_probe` is the silence
    /// after which it asks.
    fn tcp(stream: TcpStream, idle_probe: Duration) -> Self {
        let probe = idle_probe.max(Duration::from_secs(1));
        let keepalive = socket2::TcpKeepalive::new().with_time(probe).with_interval(probe);
        let options = stream.set_nodelay(true).and(socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive));
        if let Err(error) = options {
            tracing::debug!(%error, "TCP options not set");
        }
        Self::Tcp(stream)
    }

    /// Reads once into the free room of `buffer`.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => poll_read_buf(Pin::new(stream), cx, buffer),
            Self::Ipc(stream) => poll_read_buf(Pin::new(stream), cx, buffer),
        }
    }

    /// Writes once.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Ipc(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }
}

/// A bound address.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    /// The file is removed with the listener, if there is one.
    Ipc(UnixListener, PathBuf),
}

impl Listener {
    /// Binds `endpoint`.
    pub(super) async fn bind(endpoint: &Endpoint) -> Result<Self, TransportError> {
        let failed = |source| endpoint.failed("bind", source);
        match endpoint {
            Endpoint::Tcp { host, port } => listen_tcp(host, *port).await.map(Self::Tcp).map_err(failed),
            Endpoint::Ipc(path) => {
                // A file nobody listens on is left over from a process that ended; a live one answers.
                if path.exists() && UnixStream::connect(path).await.is_err() {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                Ok(Self::Ipc(UnixListener::bind(path).map_err(failed)?, path.clone()))
            }
        }
    }

    /// The next connection.
    pub(super) async fn accept(&self, idle_probe: Duration) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Ok(Stream::tcp(listener.accept().await?.0, idle_probe)),
            Self::Ipc(listener, _) => Ok(Stream::Ipc(listener.accept().await?.0)),
        }
    }

    /// Its TCP address.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Ipc(..) => None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Ipc(_, path) = self
            && path.exists()
            && let Err(error) = std::fs::remove_file(&*path)
        {
            tracing::debug!(%error, path = %path.display(), "socket file not removed");
        }
    }
}

/// Listens on `host`, a name or an address without brackets; `*` takes both families where the machine has IPv6.
pub(crate) async fn listen_tcp(host: &str, port: u16) -> io::Result<TcpListener> {
    if host == "*" {
        return match listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
            }
            bound => bound,
        };
    }
    let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in tokio::net::lookup_host((host, port)).await? {
        outcome = listen(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Listens on `address`, also right after another process did.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    socket.set_reuseaddr(true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        socket2::SockRef::from(&socket).set_only_v6(false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port }
    }

    #[test]
    fn names_and_both_families_parse_and_print_alike() {
        for (text, endpoint) in [
            ("tcp://engine-0.engines:5557", tcp("engine-0.engines", 5557)),
            ("tcp://10.0.0.1:5557", tcp("10.0.0.1", 5557)),
            ("tcp://[::1]:5557", tcp("::1", 5557)),
            ("ipc:///run/kv.sock", Endpoint::Ipc("/run/kv.sock".into())),
            ("ipc://@kv", Endpoint::Ipc("\0kv".into())),
        ] {
            let parsed = Endpoint::parse(text).unwrap();
            assert_eq!(parsed, endpoint);
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("127.0.0.1:5557", "missing scheme"),
            ("tcp://", "missing address"),
            ("tcp://host", "missing TCP port"),
            ("tcp://[::1]", "missing TCP port"),
            ("tcp://:5557", "missing TCP host"),
            ("tcp://[::1:5557", "missing closing `]`"),
            ("tcp://host:65536", "invalid TCP port: number too large to fit in target type"),
            ("udp://host:1", "unsupported scheme `udp`"),
            ("tcp://*:5557", "a wildcard can be bound, not connected to"),
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid ZMQ endpoint `{text}`: {why}"));
            assert_eq!(error.reason(), "endpoint");
        }
    }

    #[test]
    fn wildcards_can_be_bound() {
        assert_eq!(Endpoint::parse_bind("tcp://*:*").unwrap(), tcp("*", 0));
        assert_eq!(Endpoint::parse_bind("tcp://[::]:5557").unwrap(), tcp("::", 5557));
        assert!(Endpoint::parse_bind("tcp://:*").is_err());
    }

    #[tokio::test]
    async fn a_wildcard_takes_both_families() {
        let listener = Listener::bind(&Endpoint::parse_bind("tcp://*:0").unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let deadline = Instant::now() + Duration::from_secs(10);
        tcp("127.0.0.1", port).connect(deadline, Duration::from_secs(1)).await.unwrap();
        tcp("::1", port).connect(deadline, Duration::from_secs(1)).await.unwrap();
    }

    #[tokio::test]
    async fn a_left_over_socket_file_does_not_stop_a_bind_and_a_live_one_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kv.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let endpoint = Endpoint::Ipc(path.clone());
        let listener = Listener::bind(&endpoint).await.unwrap();
        assert!(Listener::bind(&endpoint).await.is_err());
        assert!(path.exists(), "the refused bind left the live socket alone");
        drop(listener);
        assert!(!path.exists());
    }
}
