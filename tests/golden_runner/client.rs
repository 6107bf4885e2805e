//! A raw HTTP/1.1 client: one connection a request, any bytes as body, headers as they come.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Lower-case names.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// What to send.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// `None` removes a default header.
    pub headers: Vec<(String, Option<String>)>,
    pub body: Option<Vec<u8>>,
    pub chunked: bool,
}

impl Request {
    pub fn json(method: &str, path: &str, body: Option<&serde_json::Value>) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            body: body.map(|b| serde_json::to_vec(b).unwrap()),
            ..Self::default()
        }
    }
}

/// Opens a connection and writes the request; the answer is still to be read.
pub fn start(port: u16, request: &Request, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_nodelay(true)?;
    let mut headers: BTreeMap<String, String> =
        [("host".into(), format!("127.0.0.1:{port}")), ("connection".into(), "close".into())].into();
    let mut payload = request.body.clone();
    if let Some(body) = &mut payload {
        headers.insert("content-type".into(), "application/json".into());
        if request.chunked {
            headers.insert("transfer-encoding".into(), "chunked".into());
            let mut framed = format!("{:x}\r\n", body.len()).into_bytes();
            framed.extend_from_slice(body);
            framed.extend_from_slice(b"\r\n0\r\n\r\n");
            *body = framed;
        } else {
            headers.insert("content-length".into(), body.len().to_string());
        }
    }
    for (name, value) in &request.headers {
        match value {
            Some(value) => headers.insert(name.to_lowercase(), value.clone()),
            None => headers.remove(&name.to_lowercase()),
        };
    }
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
    for (name, value) in &headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(payload.as_deref().unwrap_or_default());
    match stream.write_all(&bytes) {
        // A server that refuses early may close before it read all; its answer may be readable already.
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
        other => other?,
    }
    Ok(stream)
}

/// Reads the answer to `method` from a connection that closes after it.
pub fn finish(mut stream: TcpStream, method: &str) -> std::io::Result<Response> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes)
        && (error.kind() != ErrorKind::ConnectionReset || bytes.is_empty())
    {
        return Err(error);
    }
    parse(&bytes, method).ok_or_else(|| std::io::Error::other(format!("not an HTTP answer: {} bytes", bytes.len())))
}

/// One request, one answer.
pub fn send(port: u16, request: &Request, timeout: Duration) -> std::io::Result<Response> {
    finish(start(port, request, timeout)?, &request.method)
}

fn parse(bytes: &[u8], method: &str) -> Option<Response> {
    let mut rest = bytes;
    loop {
        let end = rest.windows(4).position(|w| w == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&rest[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: BTreeMap<String, String> =
            lines.filter_map(|l| l.split_once(':')).map(|(k, v)| (k.to_lowercase(), v.trim().to_owned())).collect();
        let body = &rest[end + 4..];
        if (100..200).contains(&status) {
            rest = body;
            continue;
        }
        let body = if method == "HEAD" {
            Vec::new()
        } else if headers.get("transfer-encoding").is_some_and(|t| t.eq_ignore_ascii_case("chunked")) {
            dechunk(body)?
        } else if let Some(length) = headers.get("content-length").and_then(|l| l.parse::<usize>().ok()) {
            body.get(..length)?.to_vec()
        } else {
            body.to_vec()
        };
        return Some(Response { status, headers, body });
    }
}

fn dechunk(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let end = bytes.windows(2).position(|w| w == b"\r\n")?;
        let size =
            usize::from_str_radix(std::str::from_utf8(&bytes[..end]).ok()?.split(';').next()?.trim(), 16).ok()?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return Some(out);
        }
        out.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size + 2..)?;
    }
}
