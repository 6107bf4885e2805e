//! Syntax of ZMQ endpoints, as the reference checks it (spec http 4.3). Pure: nothing is resolved or opened.

/// Checks `endpoint`: `tcp://HOST:PORT` (IPv6 hosts in brackets, any host text, any u16 port), `ipc://PATH` or
/// `inproc://NAME`.
///
/// # Errors
/// The full text, ``invalid ZMQ endpoint `E`: reason``.
pub fn check_zmq_endpoint(endpoint: &str) -> Result<(), String> {
    check(endpoint).map_err(|reason| format!("invalid ZMQ endpoint `{endpoint}`: {reason}"))
}

fn check(endpoint: &str) -> Result<(), String> {
    let (scheme, address) = endpoint.split_once("://").ok_or("missing scheme")?;
    if address.is_empty() {
        return Err("missing address".to_owned());
    }
    match scheme {
        "tcp" => check_tcp(address),
        "ipc" | "inproc" => Ok(()),
        other => Err(format!("unsupported scheme `{other}`")),
    }
}

fn check_tcp(address: &str) -> Result<(), String> {
    let (host, port) = address.rsplit_once(':').ok_or("missing TCP port")?;
    match host.as_bytes() {
        [] => return Err("missing TCP host".to_owned()),
        [b'[', .., b']'] => {}
        [b'[', ..] => return Err("missing closing `]`".to_owned()),
        // An IPv6 address without brackets: where its port begins cannot be told.
        bare if bare.contains(&b':') => return Err("missing TCP port".to_owned()),
        _ => {}
    }
    port.parse::<u16>().map(|_| ()).map_err(|error| format!("invalid TCP port: {error}"))
}

#[cfg(test)]
mod tests {
    use super::check_zmq_endpoint;

    #[test]
    fn accepts_what_the_reference_accepts() {
        for endpoint in [
            "tcp://127.0.0.1:5557",
            "tcp://[::1]:5557",
            "tcp://127.0.0.1:0",
            "tcp://*:5557",
            "tcp://no-such-host.invalid:1",
            "ipc:///tmp/x",
            "inproc://x",
        ] {
            assert_eq!(check_zmq_endpoint(endpoint), Ok(()), "{endpoint}");
        }
    }

    #[test]
    fn refuses_with_the_texts_of_the_reference() {
        for (endpoint, reason) in [
            ("bad", "missing scheme"),
            ("", "missing scheme"),
            ("localhost:5557", "missing scheme"),
            ("tcp://", "missing address"),
            ("ipc://", "missing address"),
            ("tcp://host", "missing TCP port"),
            ("tcp://a:b:1", "missing TCP port"),
            ("tcp://::1:5", "missing TCP port"),
            ("tcp://:5", "missing TCP host"),
            ("tcp://[::1:5", "missing closing `]`"),
            ("tcp://[::1]", "missing closing `]`"),
            ("tcp://host:x", "invalid TCP port: invalid digit found in string"),
            ("tcp://host:", "invalid TCP port: cannot parse integer from empty string"),
            ("tcp://host:70000", "invalid TCP port: number too large to fit in target type"),
            ("http://host:1", "unsupported scheme `http`"),
            ("udp://host:1", "unsupported scheme `udp`"),
        ] {
            assert_eq!(check_zmq_endpoint(endpoint), Err(format!("invalid ZMQ endpoint `{endpoint}`: {reason}")));
        }
    }
}
