//! `pointsman mock-engine`: flags of the stand-in engine.

use clap::{Args, ValueEnum};

use super::CliError;
use crate::{
    engine::{Encoding, EngineConfig, MockEngine, REPLAY_BATCHES, ReplayForm},
    telemetry::shutdown::StopSignals,
};

/// Runs a stand-in for an inference engine: a real KV block cache with eviction, prefill and decode that take their
/// time, and the KV events of a real engine over ZMQ.
///
/// It answers POST /v1/completions (prompts as token ids or text, streaming too) with the number of cached tokens,
/// GET /health, /v1/models, /kv_event_sources (vLLM) and /server_info (SGLang); POST /admin/restart, /admin/clear and
/// /admin/lose?batches=N make what goes wrong with engines happen on demand, GET /admin/stats counts.
#[derive(Clone, Debug, Args)]
pub struct MockEngineArgs {
    /// Address to bind; * binds all interfaces
    #[arg(long, env = "POINTSMAN_MOCK_HOST", value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// HTTP port; 0 takes any
    #[arg(long, env = "POINTSMAN_MOCK_PORT", value_name = "PORT", default_value_t = 8000)]
    port: u16,
    /// Name of the model; another name in a request is a LoRA adapter
    #[arg(long, env = "POINTSMAN_MOCK_MODEL", value_name = "NAME", default_value = "mock-model")]
    model: String,
    /// Ranks, each with a cache, an event stream and a replay socket of its own
    #[arg(long, env = "POINTSMAN_MOCK_DATA_PARALLEL_SIZE", value_name = "N", default_value_t = 1)]
    data_parallel_size: u32,

    /// Port of rank 0's KV events; rank r uses the port r above it, 0 takes any
    #[arg(long, env = "POINTSMAN_MOCK_KV_EVENTS_PORT", value_name = "PORT", default_value_t = 5557)]
    #[arg(help_heading = "KV events")]
    kv_events_port: u16,
    /// Port of rank 0's replay socket; without it lost events stay lost
    #[arg(long, env = "POINTSMAN_MOCK_REPLAY_PORT", value_name = "PORT", help_heading = "KV events")]
    replay_port: Option<u16>,
    /// Whose event encoding
    #[arg(long, env = "POINTSMAN_MOCK_ENCODING", value_enum, default_value = "vllm-map", help_heading = "KV events")]
    encoding: EncodingWord,
    /// Send block hashes as 32-byte strings (vLLM encodings)
    #[arg(long, env = "POINTSMAN_MOCK_BYTE_HASHES", help_heading = "KV events")]
    byte_hashes: bool,
    /// Topic of the event messages
    #[arg(long, env = "POINTSMAN_MOCK_TOPIC", value_name = "TEXT", default_value = "", help_heading = "KV events")]
    topic: String,
    /// Batches a replay can still give
    #[arg(long, env = "POINTSMAN_MOCK_REPLAY_BATCHES", value_name = "N", default_value_t = REPLAY_BATCHES)]
    #[arg(help_heading = "KV events")]
    replay_batches: usize,
    /// Answer replays without the topic frame, as engines before mid-2026 do
    #[arg(long, env = "POINTSMAN_MOCK_REPLAY_WITHOUT_TOPIC", help_heading = "KV events")]
    replay_without_topic: bool,

    /// Tokens a KV block
    #[arg(
        long,
        env = "POINTSMAN_MOCK_BLOCK_SIZE",
        value_name = "TOKENS",
        default_value_t = 16,
        help_heading = "Cache"
    )]
    block_size: u32,
    /// KV blocks of each rank
    #[arg(long, env = "POINTSMAN_MOCK_NUM_BLOCKS", value_name = "N", default_value_t = 4096, help_heading = "Cache")]
    num_blocks: u32,
    /// KV blocks of host memory of each rank, filled with what the device evicts
    #[arg(long, env = "POINTSMAN_MOCK_HOST_BLOCKS", value_name = "N", default_value_t = 0, help_heading = "Cache")]
    host_blocks: u32,
    /// Start of the block hash chains [default: drawn at each start, as vLLM does without PYTHONHASHSEED]
    #[arg(long, env = "POINTSMAN_MOCK_HASH_SEED", value_name = "N", help_heading = "Cache")]
    hash_seed: Option<u64>,

    /// Prompt tokens computed a second; inf takes no time
    #[arg(long, env = "POINTSMAN_MOCK_PREFILL_RATE", value_name = "TOKENS", default_value_t = 20_000.0)]
    #[arg(help_heading = "Speed")]
    prefill_rate: f64,
    /// Tokens a second that one request decodes; inf takes no time
    #[arg(long, env = "POINTSMAN_MOCK_DECODE_RATE", value_name = "TOKENS", default_value_t = 100.0)]
    #[arg(help_heading = "Speed")]
    decode_rate: f64,
    /// Tokens computed in one step at most
    #[arg(long, env = "POINTSMAN_MOCK_MAX_NUM_BATCHED_TOKENS", value_name = "N", default_value_t = 8192)]
    #[arg(help_heading = "Speed")]
    max_num_batched_tokens: usize,
    /// Requests running on a rank at a time at most
    #[arg(long, env = "POINTSMAN_MOCK_MAX_NUM_SEQS", value_name = "N", default_value_t = 256, help_heading = "Speed")]
    max_num_seqs: usize,
}

/// Encodings by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EncodingWord {
    /// vLLM 0.24 and later
    VllmMap,
    /// vLLM before 0.24
    VllmArray,
    /// SGLang
    Sglang,
    /// TensorRT-LLM through the reference's worker
    Trtllm,
}

impl MockEngineArgs {
    fn into_config(self) -> EngineConfig {
        EngineConfig {
            host: self.host,
            port: self.port,
            kv_events_port: self.kv_events_port,
            replay_port: self.replay_port,
            topic: self.topic,
            replay_batches: self.replay_batches,
            replay_form: if self.replay_without_topic { ReplayForm::WithoutTopic } else { ReplayForm::WithTopic },
            encoding: match self.encoding {
                EncodingWord::VllmMap => Encoding::VllmMap,
                EncodingWord::VllmArray => Encoding::VllmArray,
                EncodingWord::Sglang => Encoding::Sglang,
                EncodingWord::Trtllm => Encoding::Trtllm,
            },
            byte_hashes: self.byte_hashes,
            ranks: self.data_parallel_size,
            model: self.model,
            block_size: self.block_size,
            num_blocks: self.num_blocks,
            host_blocks: self.host_blocks,
            max_batched_tokens: self.max_num_batched_tokens,
            max_running: self.max_num_seqs,
            prefill_rate: self.prefill_rate,
            decode_rate: self.decode_rate,
            hash_seed: self.hash_seed,
        }
    }
}

/// Runs an engine until a signal ends it.
///
/// # Errors
/// A setting out of range; an address that cannot be bound.
pub fn run(args: MockEngineArgs) -> Result<(), CliError> {
    let config = args.into_config();
    config.validate().map_err(CliError::Usage)?;
    let runtime = super::runtime(None)?;
    runtime.block_on(async {
        let mut stop = StopSignals::install().map_err(CliError::failed)?;
        let engine = MockEngine::start(config).await.map_err(CliError::failed)?;
        for rank in 0..engine.config().ranks {
            tracing::info!(
                data_parallel_rank = rank,
                kv_events = engine.kv_events_endpoint(rank),
                replay = engine.replay_endpoint(rank),
                "publishing KV events"
            );
        }
        tracing::info!(url = engine.url(), model = engine.config().model, "mock engine is up");
        let signal = stop.recv().await;
        tracing::info!(signal, "stopping");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: MockEngineArgs,
    }

    fn config(line: &[&str]) -> EngineConfig {
        Line::try_parse_from([&["mock-engine"], line].concat()).unwrap().args.into_config()
    }

    #[test]
    fn defaults_are_the_librarys_but_for_the_ports() {
        let (flags, library) = (config(&[]), EngineConfig::default());
        assert_eq!((flags.port, flags.kv_events_port, flags.replay_port), (8000, 5557, None));
        let same = EngineConfig { port: 0, kv_events_port: 0, replay_port: library.replay_port, ..flags };
        assert_eq!(format!("{same:?}"), format!("{library:?}"));
    }

    #[test]
    fn flags_reach_the_configuration() {
        let config = config(&[
            "--port=1",
            "--kv-events-port=2",
            "--replay-port=3",
            "--encoding=sglang",
            "--byte-hashes",
            "--replay-without-topic",
            "--prefill-rate=inf",
            "--data-parallel-size=4",
            "--num-blocks=5",
        ]);
        assert_eq!((config.port, config.kv_events_port, config.replay_port), (1, 2, Some(3)));
        assert_eq!((config.encoding, config.byte_hashes, config.ranks), (Encoding::Sglang, true, 4));
        assert_eq!((config.replay_form, config.num_blocks), (ReplayForm::WithoutTopic, 5));
        assert!(config.prefill_rate.is_infinite());
    }
}
