//! The shapes in which engines tell. Unknown members are ignored; what is missing or cannot be used is named.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{EngineFacts, Publisher, Socket};
use crate::selection::worker::MAX_DATA_PARALLEL_SIZE;

/// SGLang's route.
pub const SERVER_INFO: &str = "GET /server_info";
/// vLLM's route.
pub const KV_EVENT_SOURCES: &str = "GET /kv_event_sources";
/// vLLM's route for what the other does not tell.
pub const METRICS: &str = "GET /metrics";

#[derive(Deserialize)]
struct ServerInfo {
    #[serde(default)]
    kv_events: Option<KvEvents>,
}

#[derive(Deserialize)]
struct KvEvents {
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint_host: Option<String>,
    endpoint_port_base: u16,
    #[serde(default)]
    block_size: Option<u32>,
    #[serde(default)]
    dp_size: Option<u32>,
    #[serde(default)]
    replay_endpoint_port_base: Option<u16>,
}

/// What SGLang says; none where the answer does not speak of events.
///
/// # Errors
/// Events that nobody can subscribe to.
pub fn server_info(body: &[u8]) -> Result<Option<EngineFacts>, String> {
    let unusable = |error: serde_json::Error| format!("{SERVER_INFO} cannot be read: {error}");
    let Some(events) = serde_json::from_slice::<ServerInfo>(body).map_err(unusable)?.kv_events else { return Ok(None) };
    check_publisher(SERVER_INFO, events.publisher.as_deref())?;
    let size = events.dp_size.unwrap_or(1);
    if size == 0 || size > MAX_DATA_PARALLEL_SIZE {
        return Err(format!("{SERVER_INFO} says dp_size {size}, which is not from 1 to {MAX_DATA_PARALLEL_SIZE}"));
    }
    let host = reachable(SERVER_INFO, events.endpoint_host.as_deref().unwrap_or("*"))?;
    let socket = |base: u16, rank: u32| {
        let port = u16::try_from(u32::from(base) + rank);
        let port = port.map_err(|_| format!("{SERVER_INFO}: rank {rank} would be on a port past 65535"))?;
        Ok::<_, String>(Socket { host: host.clone(), port })
    };
    let publisher = |rank: u32| {
        let events_at = socket(events.endpoint_port_base, rank)?;
        let replay = events.replay_endpoint_port_base.map(|base| socket(base, rank)).transpose()?;
        Ok::<_, String>((rank, Publisher { events: events_at, replay }))
    };
    let block_size = events.block_size.filter(|size| *size > 0);
    Ok(Some(EngineFacts {
        route: SERVER_INFO,
        block_size,
        block_size_route: block_size.map(|_| SERVER_INFO),
        total_kv_blocks: None,
        publishers: (0..size).map(publisher).collect::<Result<_, _>>()?,
    }))
}

#[derive(Deserialize)]
struct EventSource {
    #[serde(default)]
    publisher: Option<String>,
    endpoint: String,
    #[serde(default)]
    replay_endpoint: Option<String>,
}

/// What vLLM says of its publishers; none where there are none.
///
/// # Errors
/// Events that nobody can subscribe to.
pub fn kv_event_sources(body: &[u8]) -> Result<Option<EngineFacts>, String> {
    let sources: BTreeMap<String, EventSource> =
        serde_json::from_slice(body).map_err(|error| format!("{KV_EVENT_SOURCES} cannot be read: {error}"))?;
    if sources.len() > MAX_DATA_PARALLEL_SIZE as usize {
        return Err(format!("{KV_EVENT_SOURCES} names {} ranks, more than {MAX_DATA_PARALLEL_SIZE}", sources.len()));
    }
    let publisher = |(rank, source): (String, EventSource)| {
        let number = rank.parse().map_err(|_| format!("{KV_EVENT_SOURCES}: {rank:?} is no rank"))?;
        check_publisher(KV_EVENT_SOURCES, source.publisher.as_deref())?;
        let events = socket(&source.endpoint)?;
        let replay = source.replay_endpoint.as_deref().filter(|e| !e.is_empty()).map(socket).transpose()?;
        Ok::<_, String>((number, Publisher { events, replay }))
    };
    let publishers: BTreeMap<u32, Publisher> = sources.into_iter().map(publisher).collect::<Result<_, _>>()?;
    let facts = EngineFacts {
        route: KV_EVENT_SOURCES,
        block_size: None,
        block_size_route: None,
        total_kv_blocks: None,
        publishers,
    };
    Ok(Some(facts).filter(|facts| !facts.publishers.is_empty()))
}

/// Block size and capacity in blocks from the text of vLLM's metrics.
pub fn cache_config(text: &str) -> (Option<u32>, Option<u64>) {
    let line = text.lines().find(|line| line.starts_with("vllm:cache_config_info{"));
    let label = |name: &str| {
        let (_, rest) = line?.split_once(&format!("{name}=\""))?;
        rest.split('"').next()
    };
    let block_size = label("{block_size").or_else(|| label(",block_size"));
    let blocks = label("{num_gpu_blocks").or_else(|| label(",num_gpu_blocks"));
    (
        block_size.and_then(|v| v.parse().ok()).filter(|size| *size > 0),
        blocks.and_then(|v| v.parse().ok()).filter(|blocks| *blocks > 0),
    )
}

fn check_publisher(route: &str, publisher: Option<&str>) -> Result<(), String> {
    match publisher {
        None | Some("zmq") => Ok(()),
        Some(other) => Err(format!("{route} says that events are published by {other:?}, not by zmq")),
    }
}

fn socket(endpoint: &str) -> Result<Socket, String> {
    let route = KV_EVENT_SOURCES;
    let parsed = endpoint.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    let parsed = parsed.and_then(|(host, port)| Some((host, port.parse().ok().filter(|port| *port > 0)?)));
    let (host, port) = parsed.ok_or_else(|| format!("{route} says {endpoint:?}, which is not tcp://HOST:PORT"))?;
    Ok(Socket { host: reachable(route, host)?, port })
}

/// The host that others can connect to; none for all interfaces.
fn reachable(route: &str, host: &str) -> Result<Option<String>, String> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<std::net::IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Ok(None),
        Ok(ip) if ip.is_loopback() => Err(format!("{route} says that events are published on {host} alone")),
        Ok(std::net::IpAddr::V6(ip)) => Ok(Some(format!("[{ip}]"))),
        Ok(ip) => Ok(Some(ip.to_string())),
        Err(_) if matches!(bare, "" | "*") => Ok(None),
        Err(_) if bare == "localhost" => Err(format!("{route} says that events are published on {host} alone")),
        Err(_) => Ok(Some(bare.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sglang_counts_ranks_from_a_base() {
        let body = br#"{"model_path":"m","kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,
            "topic":"","block_size":64,"dp_size":2,"replay_endpoint_port_base":5657}}"#;
        let facts = server_info(body).unwrap().unwrap();
        assert_eq!((facts.block_size, facts.ranks().unwrap().size), (Some(64), 2));
        let at = "10.0.0.9".parse().unwrap();
        assert_eq!(facts.endpoints(0..2, at).unwrap()[&1], "tcp://10.0.0.9:5558");
        assert_eq!(facts.replays(0..2, at).unwrap()[&1], "tcp://10.0.0.9:5658");
        assert_eq!(facts.endpoints(0..3, at).unwrap_err(), "GET /server_info names no publisher of rank 2");
        assert_eq!(server_info(b"{}").unwrap(), None);
        assert_eq!(server_info(br#"{"kv_events":null}"#).unwrap(), None);
    }

    #[test]
    fn vllm_names_each_rank() {
        let body = br#"{"4":{"publisher":"zmq","endpoint":"tcp://*:5561","replay_endpoint":"tcp://*:5661","hwm":1},
            "5":{"endpoint":"tcp://[fd00::1]:5562","replay_endpoint":"tcp://[fd00::1]:5662"}}"#;
        let facts = kv_event_sources(body).unwrap().unwrap();
        let ranks = facts.ranks().unwrap();
        assert_eq!((ranks.start_rank, ranks.size), (4, 2));
        let endpoints = facts.endpoints(4..6, "fd00::9".parse().unwrap()).unwrap();
        assert_eq!(endpoints[&4], "tcp://[fd00::9]:5561");
        assert_eq!(endpoints[&5], "tcp://[fd00::1]:5562");
        assert_eq!(kv_event_sources(b"{}").unwrap(), None);
        let gap = br#"{"0":{"endpoint":"tcp://*:1"},"2":{"endpoint":"tcp://*:3"}}"#;
        assert!(kv_event_sources(gap).unwrap().unwrap().ranks().unwrap_err().contains("gaps"));
    }

    #[test]
    fn what_nobody_can_subscribe_to_is_named() {
        for (body, word) in [
            (&br#"{"0":{"endpoint":"ipc:///tmp/x"}}"#[..], "tcp://HOST:PORT"),
            (br#"{"0":{"endpoint":"tcp://127.0.0.1:5557"}}"#, "alone"),
            (br#"{"0":{"endpoint":"tcp://*:0"}}"#, "tcp://HOST:PORT"),
            (br#"{"0":{"endpoint":"tcp://*:5557","publisher":"null"}}"#, "not by zmq"),
            (br#"{"x":{"endpoint":"tcp://*:5557"}}"#, "no rank"),
            (b"[", "cannot be read"),
        ] {
            let error = kv_event_sources(body).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let past = br#"{"kv_events":{"endpoint_port_base":65535,"dp_size":2}}"#;
        assert!(server_info(past).unwrap_err().contains("65535"));
    }

    #[test]
    fn vllm_metrics_tell_block_size_and_capacity() {
        let text = "# TYPE vllm:cache_config_info gauge\n\
            vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",cache_dtype=\"auto\",num_gpu_blocks=\"300\",num_gpu_blocks_override=\"7\"} 1.0\n";
        assert_eq!(cache_config(text), (Some(32), Some(300)));
        assert_eq!(
            cache_config("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n"),
            (Some(16), None)
        );
        assert_eq!(cache_config("# nothing\n"), (None, None));
    }
}
