//! The selection service inside another program: typed verbs, no HTTP.
//!
//! ```text
//! cargo run --example embed --no-default-features --features service
//! ```

use pointsman::{
    selection::{
        SelectionConfig,
        request::{PromptInput, SelectRequest},
        worker::{WorkerFields, WorkerRequest},
    },
    service::{SelectionServiceBuilder, ServiceConfig},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Caches are predicted from the service's own decisions; with KV events on, workers name their event endpoints.
    let selection = SelectionConfig { use_kv_events: false, ..SelectionConfig::default() };
    let service = SelectionServiceBuilder::new(ServiceConfig { selection, ..ServiceConfig::default() }).build()?;
    service.recovered().await;

    for worker_id in 1..=2 {
        let fields = WorkerFields {
            endpoint: Some(format!("http://10.0.0.{worker_id}:8000")),
            block_size: Some(16),
            ..WorkerFields::default()
        };
        let request = WorkerRequest { worker_id, model_name: "llama".into(), routing_group: "default".into(), fields };
        let record = service.upsert_worker(request)?;
        println!("worker {worker_id} is {:?}", record.lifecycle);
    }

    // Two turns of a conversation: the second begins like the first and goes to the same worker.
    for (turn, tokens) in [(1, 0..512), (2, 0..768)] {
        let id = format!("turn-{turn}");
        let prompt = PromptInput { token_ids: Some(tokens.collect()), ..PromptInput::default() };
        let request = SelectRequest {
            model_name: "llama".into(),
            routing_group: "default".into(),
            selection_id: Some(id.clone()),
            prompt,
            ..SelectRequest::default()
        };
        let chosen = service.select_and_reserve(request).await?;
        println!(
            "{id}: worker {} at {}, {} of {} prompt tokens cached",
            chosen.worker_id,
            chosen.endpoint,
            chosen.overlap.longest_matched,
            chosen.isl_tokens.unwrap_or_default(),
        );
        service.prefill_complete(&id)?;
        service.add_output_block(&id, None)?;
        service.free_reservation(&id)?;
    }

    for partition in service.loads(&Default::default())? {
        println!("{} is idle again: {:?}", partition.model_name, partition.loads);
    }
    service.stop().await;
    Ok(())
}
