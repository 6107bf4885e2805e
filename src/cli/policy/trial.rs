//! `pointsman policy try`: the choice for one request, and why, without a selector.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use parking_lot::Mutex;

use super::{
    offline,
    state::{self, Cached, RankState, State, WorkerName},
};
use crate::{
    cli::{CliError, runtime},
    discovery::file,
    http::decode::{decode_prompted, wire},
    selection::{
        SelectionCore, SelectionError, Tier,
        catalog::DesiredWorker,
        hash,
        index::StoredBlock,
        ingest::{EventSink, EventSource, EventSources},
        moment::SystemClock,
        policy::registry::RouterPluginRegistry,
        request::{PromptInput, ReservationRequest, SelectRequest, SelectResponse},
        worker::{Lifecycle, WorkerRole},
    },
};

/// Try a policy document on one request, offline, and print the choice and why
///
/// Builds the workers of a workers file, gives them the caches and loads of a state file, and decides the request as
/// `POST /select?explain=true` would, without waiting in the queue.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct TryArgs {
    /// The document (YAML)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The request (JSON), as the body of `POST /select`
    #[arg(long, value_name = "FILE")]
    pub request: PathBuf,
    /// The workers file
    #[arg(long, value_name = "FILE")]
    pub workers: PathBuf,
    /// What the workers have cached and are doing (YAML) [default: nothing]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Role of workers that state none [default: aggregated]
    #[arg(long, value_name = "ROLE")]
    pub role: Option<WorkerRole>,
    /// Seed of ties and random choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const AFTER_HELP: &str = "\
The state file:
  workers:
    - worker: gpu-1                 # name in the workers file, or id
      rank: 0
      cached: {device: 12, host: 2, disk: 0}      # leading blocks of the prompt, by tier
      load: {requests: 3, prefill_tokens: 4096, decode_blocks: 200}";

/// Decides and prints.
///
/// # Errors
/// An input cannot be read; no worker can be chosen.
pub fn run(args: TryArgs, registry: &RouterPluginRegistry) -> Result<(), CliError> {
    let request = std::fs::read(&args.request)
        .map_err(|error| CliError::Failed(format!("cannot read {}: {error}", args.request.display())))?;
    let decoded: wire::SelectRequest =
        decode_prompted(&request).map_err(|error| CliError::Failed(format!("{}: {error}", args.request.display())))?;
    let mut request = decoded.into_core(true);
    request.explain = true;
    request.selection_id = None;
    if request.steering.deadline_ms == Some(0) {
        // No other passes, since nothing waits.
        return Err(CliError::failed(SelectionError::DeadlineExceeded));
    }

    let bench = Bench::new(&args, registry).map_err(CliError::Failed)?;
    let answer = runtime(Some(1))?.block_on(async {
        bench.load(&args, &request).await.map_err(CliError::Failed)?;
        bench.core.select(request).await.map_err(CliError::failed)
    })?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&answer).map_err(CliError::failed)?);
    } else {
        print!("{}", bench.text(&answer));
    }
    Ok(())
}

/// A core with the workers of a file.
struct Bench {
    core: Arc<SelectionCore>,
    sinks: Arc<Sinks>,
    names: BTreeMap<String, u64>,
}

/// Takes the place of listeners: what engines hold is said by the state file.
#[derive(Default)]
struct Sinks(Mutex<HashMap<(u64, u32), EventSink>>);

impl EventSources for Sinks {
    fn attach(&self, source: EventSource, sink: EventSink) {
        self.0.lock().insert((source.worker_id, source.dp_rank), sink);
    }

    fn detach(&self, worker_id: u64, dp_rank: u32) {
        self.0.lock().remove(&(worker_id, dp_rank));
    }
}

impl Bench {
    fn new(args: &TryArgs, registry: &RouterPluginRegistry) -> Result<Self, String> {
        let offline::Loaded { mut config, composition, .. } = offline::load(&args.file, registry)?;
        config.seed = Some(args.seed);
        // Caches are what the state file says, whoever would learn them.
        config.use_kv_events = true;
        config.predicted_ttl = None;
        let workers = file::load(&args.workers).map_err(|error| error.to_string())?;
        let names = state::names(&args.workers, &workers)?;
        let sinks = Arc::new(Sinks::default());
        let clock = Arc::new(SystemClock::default());
        let plugins = composition.plugins();
        let core = SelectionCore::try_new_with_plugins(config, clock, sinks.clone(), plugins)
            .map_err(|error| error.to_string())?;
        for DesiredWorker { mut request, .. } in workers {
            let fields = &mut request.fields;
            fields.worker_role = fields.worker_role.or(args.role);
            let start = fields.data_parallel_start_rank.unwrap_or(0);
            let ranks = start..start.saturating_add(fields.data_parallel_size.unwrap_or(1));
            let id = request.worker_id;
            // Nothing connects to them; a worker without event endpoints would not be schedulable.
            fields.kv_events_endpoint = None;
            fields.replay_endpoint = None;
            fields.replay_endpoints.clear();
            fields.kv_events_endpoints = ranks.map(|rank| (rank, format!("tcp://worker-{id}-rank-{rank}:1"))).collect();
            let record = core.upsert_worker(request).map_err(|error| error.to_string())?;
            if record.lifecycle == Lifecycle::Incomplete {
                eprintln!("worker {id} takes no request: {}", record.not_schedulable_reasons.join(", "));
            }
        }
        Ok(Self { core, sinks, names })
    }

    /// Gives the workers their caches and loads.
    async fn load(&self, args: &TryArgs, request: &SelectRequest) -> Result<(), String> {
        let State { workers } = args.state.as_deref().map(state::load).transpose()?.unwrap_or_default();
        for (at, entry) in workers.iter().enumerate() {
            let id = match &entry.worker {
                WorkerName::Id(id) => *id,
                WorkerName::Name(name) => {
                    *self.names.get(name).ok_or_else(|| format!("no worker in the workers file is called {name:?}"))?
                }
            };
            self.check_rank(id, entry)?;
            self.cache(id, entry, request);
            self.book(id, entry, at, request).await?;
        }
        Ok(())
    }

    /// What is said of a rank that is not there would change nothing, and nobody would know.
    fn check_rank(&self, id: u64, entry: &RankState) -> Result<(), String> {
        let record = self.core.worker(id).filter(|record| record.lifecycle == Lifecycle::Schedulable);
        let has_rank = record.is_some_and(|record| {
            let fields = &record.request.fields;
            let from_start = entry.rank.checked_sub(fields.data_parallel_start_rank.unwrap_or(0));
            from_start.is_some_and(|rank| rank < fields.data_parallel_size.unwrap_or(1))
        });
        let missing = || format!("{} has no rank {}, or is not schedulable", entry.worker, entry.rank);
        has_rank.then_some(()).ok_or_else(missing)
    }

    fn cache(&self, id: u64, entry: &RankState, request: &SelectRequest) {
        let Cached { device, host, disk } = entry.cached;
        if [device, host, disk] == [0; 3] {
            return;
        }
        let sinks = self.sinks.0.lock();
        // Of a policy that does not look at caches nobody listens to events.
        let Some(sink) = sinks.get(&(id, entry.rank)) else { return };
        let eagle = self.core.worker(id).and_then(|record| record.request.fields.is_eagle).unwrap_or(false);
        let locals = local_hashes(&request.prompt, sink.block_size(), eagle);
        let mut names = Vec::new();
        hash::sequence_hashes(&locals, &mut names);
        let mut from = 0_usize;
        for (tier, blocks) in [(Tier::Device, device), (Tier::HostPinned, host), (Tier::Disk, disk)] {
            let to = from.saturating_add(blocks).min(locals.len());
            let stored: Vec<_> = (from..to).map(|at| StoredBlock { name: names[at], local: locals[at] }).collect();
            if !stored.is_empty() {
                sink.store(entry.rank, tier, from.checked_sub(1).map(|at| names[at]), &stored);
            }
            from = to;
        }
    }

    async fn book(&self, id: u64, entry: &RankState, at: usize, request: &SelectRequest) -> Result<(), String> {
        for (number, (tokens, blocks)) in entry.load.bookings().into_iter().enumerate() {
            // Hashes of nobody's prompt, different for every booking.
            let block = |block: u64| (hash::chain(at as u64 + 1, hash::chain(number as u64 + 1, block))).cast_signed();
            let hashes: Vec<i64> = (0..blocks).map(block).collect();
            let prompt = PromptInput {
                isl_tokens: Some(tokens.max(1)),
                block_hashes: Some(hashes.clone()),
                sequence_hashes: Some(hashes),
                ..PromptInput::default()
            };
            let reservation = ReservationRequest {
                model_name: request.model_name.clone(),
                routing_group: request.routing_group.clone(),
                selection_id: format!("state-{at}-{number}"),
                worker_id: Some(id),
                dp_rank: Some(entry.rank),
                prompt,
                effective_prefill_tokens: Some(tokens),
                track_prefill_tokens: Some(tokens > 0),
                ..ReservationRequest::default()
            };
            let made = self.core.create_reservation(reservation).await;
            made.map_err(|error| format!("load of worker {id}: {error}"))?;
        }
        Ok(())
    }

    fn text(&self, answer: &SelectResponse) -> String {
        let name = |id: u64| {
            let named = self.names.iter().find(|(_, known)| **known == id);
            named.map_or_else(|| id.to_string(), |(name, _)| name.clone())
        };
        let mut out = String::new();
        // Writing to a string cannot fail, here and below.
        writeln!(
            out,
            "{} rank {} of model {}, group {}: {} prompt tokens to compute there",
            name(answer.worker_id),
            answer.dp_rank,
            answer.model_name,
            answer.routing_group,
            answer.effective_prefill_tokens
        )
        .ok();
        let Some(explanation) = &answer.explain else { return out };
        writeln!(out, "policy {}", explanation.policy).ok();
        if let Some((worker, rank)) = explanation.runner_up {
            writeln!(out, "runner-up {} rank {rank}; {} share the lowest cost", name(worker), explanation.ties).ok();
        }
        for candidate in &explanation.candidates {
            write!(out, "{} rank {}: ", name(candidate.worker_id), candidate.dp_rank).ok();
            match candidate.cost {
                Some(cost) => write!(out, "cost {cost}").ok(),
                None => write!(out, "{}", candidate.verdict).ok(),
            };
            for (term, value) in &candidate.cost_terms {
                write!(out, ", {term} {value}").ok();
            }
            let [device, host, disk, external] = candidate.cached_blocks;
            writeln!(
                out,
                "; cached blocks device {device}, host {host}, disk {disk}, external {external}; {} requests, {} prefill \
                 tokens, {} blocks active",
                candidate.active_requests, candidate.active_prefill_tokens, candidate.active_blocks
            )
            .ok();
        }
        out
    }
}

/// Hashes of the content of the prompt's complete blocks.
fn local_hashes(prompt: &PromptInput, block_size: u32, is_eagle: bool) -> Vec<u64> {
    let Some(view) = hash::token_view(prompt) else {
        let given = prompt.block_hashes.as_deref().unwrap_or_default();
        return given.iter().map(|hash| hash.cast_unsigned()).collect();
    };
    let seed = hash::block_seed(prompt.lora_name.as_deref(), prompt.cache_salt.as_deref());
    let mut out = Vec::new();
    let is_eagle = prompt.is_eagle.unwrap_or(is_eagle);
    hash::block_hashes(view.tokens, block_size, is_eagle, seed, view.mm_infos, &mut out);
    out
}
