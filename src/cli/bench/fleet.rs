//! The workers a run registers, and removes again.

use hyper::Method;
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    client::{Connection, Server},
    flags::{FleetArgs, PromptArgs},
};

/// Connections over which workers are registered.
const PARALLEL: usize = 8;

/// What is sent for each worker.
///
/// # Errors
/// There are not as many ports as workers.
pub fn records(fleet: &FleetArgs, prompts: &PromptArgs) -> Result<Vec<Vec<u8>>, String> {
    ids(fleet).map(|id| record(id, fleet, prompts)).collect()
}

/// Registers the first worker: what is wrong with one is wrong with all, and is told before there are thousands to
/// remove.
///
/// # Errors
/// It is refused or not schedulable; unless workers are to be kept, it is not left.
pub async fn register_first(server: &Server, fleet: &FleetArgs, records: &[Vec<u8>]) -> Result<(), String> {
    let Some(first) = records.first() else { return Ok(()) };
    let registered = post(&mut Connection::new(server.clone()), first.clone()).await;
    if registered.is_err() && !fleet.keep_workers {
        remove_some(server, ids(fleet).take(1)).await;
    }
    registered
}

/// Registers all others.
///
/// # Errors
/// The first worker that is refused or not schedulable.
pub async fn register_others(server: &Server, records: &[Vec<u8>]) -> Result<(), String> {
    let bodies = records.get(1..).unwrap_or_default();
    let mut lanes = JoinSet::new();
    for lane in 0..PARALLEL {
        let mine: Vec<Vec<u8>> = bodies.iter().skip(lane).step_by(PARALLEL).cloned().collect();
        let mut connection = Connection::new(server.clone());
        lanes.spawn(async move {
            for body in mine {
                post(&mut connection, body).await?;
            }
            Ok::<(), String>(())
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane.map_err(|e| e.to_string())??;
    }
    Ok(())
}

async fn post(connection: &mut Connection, body: Vec<u8>) -> Result<(), String> {
    let answer = connection.call(Method::POST, "/workers", body).await.map_err(|e| e.to_string())?;
    let shown: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if answer.status != 201 {
        return Err(format!("POST /workers: {} {}", answer.status, shown["error"]));
    }
    if shown["lifecycle"] == "schedulable" {
        return Ok(());
    }
    let reasons = &shown["not_schedulable_reasons"];
    if reasons.to_string().contains("kv_events endpoint is required") {
        return Err(
            "the server follows KV events and wants an endpoint of each worker: pass --kv-events-base-port PORT \
                    (nothing need listen there), or start the server with DYN_ROUTER_USE_KV_EVENTS=false"
                .to_owned(),
        );
    }
    Err(format!("worker {} is {}: {reasons}", shown["worker_id"], shown["lifecycle"]))
}

/// Removes all workers, as far as they are there.
pub async fn remove(server: &Server, fleet: &FleetArgs) {
    remove_some(server, ids(fleet)).await;
}

async fn remove_some(server: &Server, ids: impl Iterator<Item = u64>) {
    let mut connection = Connection::new(server.clone());
    for id in ids {
        if connection.call(Method::DELETE, &format!("/workers/{id}"), Vec::new()).await.is_err() {
            return;
        }
    }
}

fn ids(fleet: &FleetArgs) -> impl Iterator<Item = u64> + use<> {
    let first = fleet.first_worker_id;
    (0..u64::from(fleet.workers)).map(move |n| first.saturating_add(n))
}

fn record(id: u64, fleet: &FleetArgs, prompts: &PromptArgs) -> Result<Vec<u8>, String> {
    let mut record = json!({
        "worker_id": id,
        "model_name": fleet.model,
        "endpoint": format!("http://127.0.0.1:9/{id}"),
        "block_size": prompts.block_size,
        "data_parallel_size": fleet.data_parallel_size,
        "max_num_batched_tokens": 8192,
        "total_kv_blocks": 1_000_000,
    });
    if let Some(base) = fleet.kv_events_base_port {
        let first = (id - fleet.first_worker_id) * u64::from(fleet.data_parallel_size);
        let port = |rank: u64| {
            let port = u64::from(base) + first + rank;
            u16::try_from(port)
                .map_err(|_| format!("{} workers need more ports than there are from {base} on", fleet.workers))
        };
        let endpoints: serde_json::Map<String, serde_json::Value> = (0..u64::from(fleet.data_parallel_size))
            .map(|rank| Ok((rank.to_string(), json!(format!("tcp://127.0.0.1:{}", port(rank)?)))))
            .collect::<Result<_, String>>()?;
        record["kv_events_endpoints"] = endpoints.into();
    }
    serde_json::to_vec(&record).map_err(|e| e.to_string())
}
