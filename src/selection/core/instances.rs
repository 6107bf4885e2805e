//! The standalone indexer's verbs (spec index 9). An instance is a record of the catalog in the state
//! [`WorkerState::Indexed`]: it has listeners and blocks, and neither load nor bookings. Ids are shared with workers:
//! a worker takes an instance's place by being registered as one; never the other way round.

use std::sync::Arc;

use super::SelectionCore;
use crate::selection::{
    catalog::{API_OWNER, Catalog},
    endpoint::check_zmq_endpoint,
    error::SelectionError,
    hash,
    identity::PartitionKey,
    index::{Matches, TierBlocks},
    instance::{IndexQuery, IndexScores, InstanceRank, InstanceRemoval},
    worker::{MAX_DATA_PARALLEL_SIZE, WorkerFields, WorkerRecord, WorkerRequest, WorkerState},
};

impl SelectionCore {
    /// Starts to index one rank of an instance.
    ///
    /// # Errors
    /// 400 endpoint, block size or too wide a span of ranks; 409 already registered, another block size, or no events
    /// here; 503 while shutting down.
    pub fn register_instance(&self, rank: InstanceRank) -> Result<(), SelectionError> {
        self.refuse_when_shutting_down()?;
        check_zmq_endpoint(&rank.endpoint).map_err(SelectionError::BadRequest)?;
        if let Some(replay) = &rank.replay_endpoint {
            check_zmq_endpoint(replay)
                .map_err(|error| SelectionError::BadRequest(format!("invalid replay endpoint `{replay}`: {error}")))?;
        }
        if rank.block_size == 0 {
            return Err(SelectionError::BadRequest("block_size must be greater than 0".to_owned()));
        }
        if !self.config.use_kv_events {
            return Err(SelectionError::Conflict("this service takes no KV events".to_owned()));
        }
        let mut catalog = self.catalog.lock();
        let existing = catalog.workers.get(&rank.instance_id).map(|entry| Arc::clone(&entry.record));
        if let Some(record) = &existing {
            check_free(record, &rank)?;
        }
        if let Some(partition) = self.partition(&rank.model_name, &rank.routing_group)
            && partition.block_size != rank.block_size
        {
            return Err(SelectionError::Conflict(format!(
                "block_size mismatch for model={} routing_group={}: existing={}, requested={}",
                rank.model_name, rank.routing_group, partition.block_size, rank.block_size
            )));
        }
        let mut fields = existing.map_or_else(WorkerFields::default, |record| record.request.fields.clone());
        fields.block_size = Some(rank.block_size);
        fields.kv_events_endpoints.insert(rank.dp_rank, rank.endpoint);
        if let Some(replay) = rank.replay_endpoint {
            fields.replay_endpoints.insert(rank.dp_rank, replay);
        }
        span(&mut fields).map_err(|(first, last)| {
            SelectionError::BadRequest(format!(
                "instance {} would have dp_rank {first} to {last}: an instance spans at most \
                 {MAX_DATA_PARALLEL_SIZE} ranks, below {}",
                rank.instance_id,
                u32::MAX
            ))
        })?;
        let (model_name, routing_group) = (rank.model_name, rank.routing_group);
        let request = WorkerRequest { worker_id: rank.instance_id, model_name, routing_group, fields };
        self.put(&mut catalog, Arc::new(request), WorkerState::Indexed, Arc::from(API_OWNER));
        self.retry_freed(&mut catalog);
        Ok(())
    }

    /// Forgets an instance or one rank of it; its blocks are gone when this returns.
    ///
    /// # Errors
    /// 404 not registered, or not for this model and group; 409 it is a worker.
    pub fn unregister_instance(&self, removal: &InstanceRemoval) -> Result<(), SelectionError> {
        let id = removal.instance_id;
        let mut catalog = self.catalog.lock();
        let record = instance(&catalog, id)?;
        let elsewhere = *record.request.model_name != *removal.model_name
            || removal.routing_group.as_ref().is_some_and(|group| *group != record.request.routing_group);
        if elsewhere {
            return Err(SelectionError::NotFound(format!("instance {id} is registered for {}", place(&record))));
        }
        let one = removal.dp_rank.filter(|_| removal.routing_group.is_some());
        let mut fields = record.request.fields.clone();
        match one {
            None => fields.kv_events_endpoints.clear(),
            Some(rank) => {
                if fields.kv_events_endpoints.remove(&rank).is_none() {
                    return Err(SelectionError::NotFound(format!("instance {id} dp_rank {rank} not found")));
                }
                fields.replay_endpoints.remove(&rank);
            }
        }
        if span(&mut fields).is_ok_and(|ranks| ranks > 0) {
            let request = WorkerRequest { fields, ..(*record.request).clone() };
            self.put(&mut catalog, Arc::new(request), WorkerState::Indexed, Arc::clone(&record.owner));
        } else {
            self.remove(&mut catalog, id);
        }
        self.retry_freed(&mut catalog);
        Ok(())
    }

    /// What everybody in a partition holds of a prompt, schedulable or not.
    ///
    /// # Errors
    /// 404 no such partition; 500 the index failed.
    pub fn query_index(
        &self,
        model_name: &str,
        routing_group: &str,
        query: &IndexQuery,
    ) -> Result<IndexScores, SelectionError> {
        let partition = self.partition(model_name, routing_group).ok_or_else(|| {
            SelectionError::NotFound(format!("no indexer for model={model_name} routing_group={routing_group}"))
        })?;
        let (mut locals, mut seqs) = (Vec::new(), Vec::new());
        match query {
            IndexQuery::Tokens { token_ids, lora_name, cache_salt } => {
                let seed = hash::block_seed(lora_name.as_deref(), cache_salt.as_deref());
                let (size, eagle) = (partition.block_size, partition.is_eagle());
                hash::block_hashes(token_ids, size, eagle, seed, None, &mut locals);
            }
            IndexQuery::Hashes(hashes) => locals.extend(hashes.iter().map(|hash| hash.cast_unsigned())),
        }
        hash::sequence_hashes(&locals, &mut seqs);
        let index = partition.index.primary();
        let mut matches = Matches::default();
        let found = partition.health().contain(|| index.lookup(&locals, &seqs, &mut matches));
        found.ok_or_else(|| SelectionError::Internal(format!("index of {} failed", partition.key)))?;
        let mut scores = IndexScores::default();
        for class in &matches.classes {
            class.lanes.for_each(|lane| {
                if let Some(rank) = index.rank_of(lane) {
                    add(&mut scores, rank.worker_id, rank.dp_rank, class.blocks, partition.block_size);
                }
            });
        }
        Ok(scores)
    }
}

/// The record of an instance.
fn instance(catalog: &Catalog, id: u64) -> Result<Arc<WorkerRecord>, SelectionError> {
    let entry = catalog.workers.get(&id);
    let entry = entry.ok_or_else(|| SelectionError::NotFound(format!("instance {id} not found")))?;
    if entry.record.state == WorkerState::Indexed { Ok(Arc::clone(&entry.record)) } else { Err(is_worker(id)) }
}

fn is_worker(id: u64) -> SelectionError {
    SelectionError::Conflict(format!("instance {id} is a worker: it is changed by /workers/{id} or by its owner"))
}

fn place(record: &WorkerRecord) -> PartitionKey {
    record.request.partition()
}

/// Whether the rank may be added to what is live under its id.
fn check_free(record: &WorkerRecord, rank: &InstanceRank) -> Result<(), SelectionError> {
    let id = rank.instance_id;
    let request = &record.request;
    if request.model_name != rank.model_name || request.routing_group != rank.routing_group {
        return Err(SelectionError::Conflict(format!("instance {id} is already registered for {}", place(record))));
    }
    let fields = &request.fields;
    let scalar = fields.kv_events_endpoints.is_empty() && fields.kv_events_endpoint.is_some();
    let first = fields.data_parallel_start_rank.unwrap_or(0);
    if fields.kv_events_endpoints.contains_key(&rank.dp_rank) || (scalar && rank.dp_rank == first) {
        return Err(SelectionError::Conflict(format!("instance {id} dp_rank {} already registered", rank.dp_rank)));
    }
    if record.state == WorkerState::Indexed { Ok(()) } else { Err(is_worker(id)) }
}

/// Makes the range of ranks reach from the first to the last one with a stream; their number, or why there can be no
/// such range.
fn span(fields: &mut WorkerFields) -> Result<u32, (u32, u32)> {
    let ranks = &fields.kv_events_endpoints;
    let (Some((&first, _)), Some((&last, _))) = (ranks.first_key_value(), ranks.last_key_value()) else { return Ok(0) };
    let size = last - first;
    if last == u32::MAX || size >= MAX_DATA_PARALLEL_SIZE {
        return Err((first, last));
    }
    fields.data_parallel_start_rank = Some(first);
    fields.data_parallel_size = Some(size + 1);
    Ok(size + 1)
}

fn add(scores: &mut IndexScores, instance: u64, dp_rank: u32, blocks: TierBlocks, block_size: u32) {
    let tokens = |blocks: u32| blocks.saturating_mul(block_size);
    let host = blocks.device.saturating_add(blocks.host);
    let disk = host.saturating_add(blocks.disk).saturating_add(blocks.external);
    if disk == 0 {
        return;
    }
    if blocks.device > 0 {
        scores.scores.entry(instance).or_default().insert(dp_rank, tokens(blocks.device));
    }
    let held = scores.instances.entry(instance).or_default();
    held.dp.insert(dp_rank, tokens(blocks.device));
    held.gpu = held.gpu.max(tokens(blocks.device));
    held.cpu = held.cpu.max(tokens(host));
    held.disk = held.disk.max(tokens(disk));
    held.longest_matched = held.longest_matched.max(held.disk);
}
