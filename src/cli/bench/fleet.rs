//! The workers a run registers, and removes again.

use hyper::Method;
use serde_json::json;

use super::{
    client::{Connection, Server},
    flags::{FleetArgs, PromptArgs},
};

/// Connections over which workers are registered.
const PARALLEL: u64 = 8;

/// Registers all workers, one before the others: what is wrong with one is wrong with all.
///
/// # Errors
/// The first worker that is refused or not schedulable.
pub async fn register(server: &Server, fleet: &FleetArgs, prompts: &PromptArgs) -> Result<(), String> {
    let mut bodies: Vec<Vec<u8>> = ids(fleet).map(|id| record(id, fleet, prompts)).collect::<Result<_, _>>()?;
    if let Some(first) = bodies.pop() {
        post(&mut Connection::new(server.clone()), first).await?;
    }
    let tasks: Vec<_> = (0..PARALLEL)
        .map(|lane| {
            let mine: Vec<Vec<u8>> = bodies.iter().skip(lane as usize).step_by(PARALLEL as usize).cloned().collect();
            let mut connection = Connection::new(server.clone());
            tokio::spawn(async move {
                for body in mine {
                    post(&mut connection, body).await?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|e| e.to_string())??;
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
    let mut connection = Connection::new(server.clone());
    for id in ids(fleet) {
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
