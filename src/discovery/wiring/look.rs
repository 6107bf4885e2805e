//! What a selector tells of its replica sync.
//!
//! Ours answer `GET /replica_sync/status`. The reference's only list their peers; whether sync is on there is told by a
//! deregistration that cannot succeed: 409 when it is off, 400 for the endpoint when it is on.

use reqwest::Method;
use serde::Deserialize;

use crate::discovery::apply::{ClientError, RemoteClient};

/// No endpoint by its syntax, so that asking to remove it removes nothing.
const PROBE: &str = "is-replica-sync-on";
/// Longest identity that is believed to be one.
const MAX_IDENTITY: usize = 128;

/// Whether a selector takes part in a mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaSync {
    /// It publishes and subscribes.
    Enabled,
    /// It was started without.
    #[default]
    Disabled,
    /// It has no such routes.
    Unsupported,
}

/// One look at a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Whether it takes part.
    pub sync: ReplicaSync,
    /// Where it says it publishes.
    pub publisher: Option<String>,
    /// Changes with every start of the process.
    pub instance_id: Option<String>,
    /// Marks what the process publishes.
    pub router_id: Option<u64>,
    /// Registered endpoints as they are spelled there, in its order.
    pub peers: Vec<String>,
    /// How many of them are connected; none where the selector does not tell.
    pub connected: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Status {
    enabled: bool,
    #[serde(default)]
    router_id: Option<u64>,
    #[serde(default)]
    instance_id: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    peers: Vec<Peer>,
}

#[derive(Debug, Deserialize)]
struct Peer {
    endpoint: String,
    #[serde(default)]
    state: String,
}

/// Asks the selector behind `client`.
///
/// # Errors
/// It does not answer, or answers what cannot be read.
pub(super) async fn look(client: &RemoteClient) -> Result<Look, ClientError> {
    match client.call_replica_sync(Method::GET, "status", None).await {
        Ok(answer) => Ok(from_status(client.decode("GET /replica_sync/status", &answer)?)),
        Err(error) if is_no_route(&error) => from_peers(client).await,
        Err(error) => Err(error),
    }
}

fn from_status(status: Status) -> Look {
    Look {
        sync: if status.enabled { ReplicaSync::Enabled } else { ReplicaSync::Disabled },
        publisher: status.endpoint,
        instance_id: status.instance_id.filter(|id| !id.is_empty() && id.len() <= MAX_IDENTITY),
        router_id: status.router_id,
        connected: Some(status.peers.iter().filter(|p| p.state == "connected").count()),
        peers: status.peers.into_iter().map(|p| p.endpoint).collect(),
    }
}

async fn from_peers(client: &RemoteClient) -> Result<Look, ClientError> {
    let answer = match client.call_replica_sync(Method::GET, "peers", None).await {
        Ok(answer) => answer,
        Err(error) if is_no_route(&error) => return Ok(Look { sync: ReplicaSync::Unsupported, ..Look::default() }),
        Err(error) => return Err(error),
    };
    let peers: Vec<String> = client.decode("GET /replica_sync/peers", &answer)?;
    let sync = if peers.is_empty() { probe(client).await? } else { ReplicaSync::Enabled };
    Ok(Look { sync, peers, ..Look::default() })
}

async fn probe(client: &RemoteClient) -> Result<ReplicaSync, ClientError> {
    let body = serde_json::json!({ "endpoint": PROBE }).to_string().into_bytes();
    match client.call_replica_sync(Method::POST, "deregister_peer", Some(body)).await {
        Ok(_) => Ok(ReplicaSync::Enabled),
        Err(error) => match error.status() {
            Some(400) => Ok(ReplicaSync::Enabled),
            Some(409) => Ok(ReplicaSync::Disabled),
            Some(404 | 405) => Ok(ReplicaSync::Unsupported),
            _ => Err(error),
        },
    }
}

fn is_no_route(error: &ClientError) -> bool {
    matches!(error.status(), Some(404 | 405))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_with_fields_of_the_future_is_read() {
        let text = r#"{"enabled":true,"router_id":18446744073709551615,"instance_id":"u","endpoint":"tcp://10.0.0.1:9092",
            "url":null,"wire_version":9,"new":[1],"peers":[
            {"endpoint":"tcp://b:9092","state":"connected","lag_ms":0.5,"diverged":[],"dropped":{"x":1}},
            {"endpoint":"tcp://c:9092","state":"silent"},{"endpoint":"tcp://d:9092"}]}"#;
        let look = from_status(serde_json::from_str(text).unwrap());
        assert_eq!(look.sync, ReplicaSync::Enabled);
        assert_eq!(look.router_id, Some(u64::MAX));
        assert_eq!(look.publisher.as_deref(), Some("tcp://10.0.0.1:9092"));
        assert_eq!(look.peers, ["tcp://b:9092", "tcp://c:9092", "tcp://d:9092"]);
        assert_eq!(look.connected, Some(1));
        let off: Status = serde_json::from_str(r#"{"enabled":false,"endpoint":null,"peers":[]}"#).unwrap();
        assert_eq!(from_status(off).sync, ReplicaSync::Disabled);
    }
}
