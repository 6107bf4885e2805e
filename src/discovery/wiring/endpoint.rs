//! Publisher endpoints: which one a selector has, and when two spellings mean one.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use crate::selection::endpoint::check_zmq_endpoint;

/// Port of a publisher that nobody named.
pub const DEFAULT_PUBLISHER_PORT: u16 = 9092;
/// Longest wait for a name to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a resolved name is believed.
const RESOLVE_AGAIN: Duration = Duration::from_secs(30);
/// Addresses kept of one name.
const MAX_ADDRESSES: usize = 64;

/// Checks an endpoint that others are to connect to: `tcp://HOST:PORT` with a host and a port that can be reached.
///
/// # Errors
/// What is wrong with it.
pub fn check_publisher(endpoint: &str) -> Result<(), String> {
    check_zmq_endpoint(endpoint)?;
    let Some((host, port)) = split(endpoint) else {
        return Err(format!("`{endpoint}` cannot be reached from other hosts: it must be tcp://HOST:PORT"));
    };
    if port == 0 || host == "*" || address(host).is_some_and(|a| a.is_unspecified()) {
        return Err(format!("`{endpoint}` names no address that another selector could connect to"));
    }
    Ok(())
}

/// The publisher of a selector whose URL has `host`, when nobody says otherwise.
pub(super) fn default_publisher(host: &str) -> String {
    format!("tcp://{host}:{DEFAULT_PUBLISHER_PORT}")
}

/// What a selector says of its own publisher, as others can use it: a wildcard, or a loopback address that only itself
/// can reach, is replaced by the host the selector was asked under. `None` when it cannot be used.
pub(super) fn advertised(endpoint: &str, url_host: &str) -> Option<String> {
    check_zmq_endpoint(endpoint).ok()?;
    let (host, port) = split(endpoint).filter(|(_, port)| *port != 0)?;
    let is_local = |host: &str| host == "localhost" || address(host).is_some_and(|a| a.is_loopback());
    let unspecified = host == "*" || address(host).is_some_and(|a| a.is_unspecified());
    if unspecified || (is_local(host) && !is_local(url_host)) {
        return Some(format!("tcp://{url_host}:{port}"));
    }
    Some(endpoint.to_owned())
}

/// One spelling for endpoints that are spelled differently and mean the same without asking a resolver.
pub(super) fn normalise(endpoint: &str) -> String {
    let Some((host, port)) = split(endpoint) else { return endpoint.to_owned() };
    match address(host) {
        Some(address) => format!("tcp://{}", SocketAddr::new(address, port)),
        None => format!("tcp://{}:{port}", host.to_ascii_lowercase()),
    }
}

/// Host and port of a TCP endpoint.
pub(super) fn split(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn address(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

/// The socket addresses behind a host and port, looked up now and then.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    of: Option<(String, u16)>,
    looked_up: Option<Instant>,
    addresses: BTreeSet<SocketAddr>,
}

impl Resolved {
    /// The addresses of `host`; those of the last time while it does not resolve, none when it never did.
    pub(super) async fn get(&mut self, host: &str, port: u16) -> BTreeSet<SocketAddr> {
        if let Some(address) = address(host) {
            return BTreeSet::from([SocketAddr::new(address, port)]);
        }
        let same = self.of.as_ref().is_some_and(|(h, p)| h == host && *p == port);
        if same && self.looked_up.is_some_and(|at| at.elapsed() < RESOLVE_AGAIN) {
            return self.addresses.clone();
        }
        if !same {
            *self = Self { of: Some((host.to_owned(), port)), ..Self::default() };
        }
        self.looked_up = Some(Instant::now());
        if let Ok(Ok(found)) = timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port))).await {
            self.addresses = found.take(MAX_ADDRESSES).collect();
        }
        self.addresses.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_address_are_one() {
        for (one, other) in [
            ("tcp://127.0.0.1:9092", "tcp://127.0.0.1:09092"),
            ("tcp://Host.Example:1", "tcp://host.example:1"),
            ("tcp://[::1]:1", "tcp://[0:0:0:0:0:0:0:1]:1"),
        ] {
            assert_eq!(normalise(one), normalise(other));
        }
        assert_ne!(normalise("tcp://a:1"), normalise("tcp://a:2"));
        assert_eq!(normalise("ipc:///tmp/A"), "ipc:///tmp/A");
    }

    #[test]
    fn what_nobody_can_connect_to_is_refused() {
        for bad in ["tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://a:0", "ipc:///x", "udp://a:1", "a:1"] {
            assert!(check_publisher(bad).is_err(), "{bad}");
        }
        for good in ["tcp://a:1", "tcp://10.0.0.1:9092", "tcp://[2001:db8::1]:9092"] {
            check_publisher(good).unwrap();
        }
    }

    #[test]
    fn a_selector_that_knows_only_its_port_keeps_the_host_it_was_asked_under() {
        for (said, host, used) in [
            ("tcp://10.0.0.1:9092", "a", Some("tcp://10.0.0.1:9092")),
            ("tcp://*:9192", "a", Some("tcp://a:9192")),
            ("tcp://0.0.0.0:9192", "[2001:db8::1]", Some("tcp://[2001:db8::1]:9192")),
            ("tcp://127.0.0.1:9192", "10.0.0.7", Some("tcp://10.0.0.7:9192")),
            ("tcp://127.0.0.1:9192", "localhost", Some("tcp://127.0.0.1:9192")),
            ("tcp://a:0", "a", None),
            ("rubbish", "a", None),
        ] {
            assert_eq!(advertised(said, host).as_deref(), used, "{said} under {host}");
        }
    }

    #[tokio::test]
    async fn literals_need_no_resolver_and_unknown_names_have_no_address() {
        let mut resolved = Resolved::default();
        assert_eq!(resolved.get("[::1]", 5).await, BTreeSet::from(["[::1]:5".parse().unwrap()]));
        assert!(resolved.get("no-such-host.invalid", 5).await.is_empty());
    }
}
