//! Settings of a stand-in engine.

use std::time::Duration;

use super::encode::Encoding;

/// Batches that a replay socket can still answer with, as engines keep them.
pub const REPLAY_BATCHES: usize = 10_000;

/// What a replay answer looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayForm {
    /// Four frames, with the topic: engines since mid-2026.
    #[default]
    WithTopic,
    /// Three frames, without it: engines before.
    WithoutTopic,
}

/// An engine's settings. Every port may be 0: any free one.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Address to bind, without brackets; `*` binds all interfaces of both families.
    pub host: String,
    /// HTTP port.
    pub port: u16,
    /// Port of rank 0's event publisher; rank r uses the port r above it.
    pub kv_events_port: u16,
    /// Port of rank 0's replay socket; `None` goes without.
    pub replay_port: Option<u16>,
    /// Topic of the event messages.
    pub topic: String,
    /// Batches a replay socket keeps.
    pub replay_batches: usize,
    /// Form of replay answers.
    pub replay_form: ReplayForm,
    /// Encoding of events.
    pub encoding: Encoding,
    /// vLLM encodings: hashes as 32-byte strings.
    pub byte_hashes: bool,
    /// Data-parallel ranks, each with a cache and a scheduler of its own.
    pub ranks: u32,
    /// Name of the model it serves; another name in a request is a LoRA adapter.
    pub model: String,
    /// Tokens a block.
    pub block_size: u32,
    /// Device blocks of each rank.
    pub num_blocks: u32,
    /// Blocks of each rank's host memory, filled with what the device evicts.
    pub host_blocks: u32,
    /// Tokens computed in one step at most.
    pub max_batched_tokens: usize,
    /// Requests running on a rank at a time at most.
    pub max_running: usize,
    /// Prompt tokens a second.
    pub prefill_rate: f64,
    /// Steps a second while anything decodes: tokens a second of one request.
    pub decode_rate: f64,
    /// Start of the hash chains; `None` draws one at each start, as vLLM does without PYTHONHASHSEED.
    pub hash_seed: Option<u64>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 0,
            kv_events_port: 0,
            replay_port: Some(0),
            topic: String::new(),
            replay_batches: REPLAY_BATCHES,
            replay_form: ReplayForm::WithTopic,
            encoding: Encoding::VllmMap,
            byte_hashes: false,
            ranks: 1,
            model: "mock-model".into(),
            block_size: 16,
            num_blocks: 4096,
            host_blocks: 0,
            max_batched_tokens: 8192,
            max_running: 256,
            prefill_rate: 20_000.0,
            decode_rate: 100.0,
            hash_seed: None,
        }
    }
}

impl EngineConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// A text that names the setting and its range.
    pub fn validate(&self) -> Result<(), String> {
        let positive = |name: &str, ok: bool| if ok { Ok(()) } else { Err(format!("{name} must be greater than 0")) };
        positive("block size", self.block_size > 0)?;
        positive("number of blocks", self.num_blocks > 0)?;
        positive("number of ranks", self.ranks > 0)?;
        positive("batched tokens", self.max_batched_tokens > 0)?;
        positive("running requests", self.max_running > 0)?;
        positive("prefill rate", self.prefill_rate > 0.0)?;
        positive("decode rate", self.decode_rate > 0.0)?;
        for (name, port) in [("kv events", Some(self.kv_events_port)), ("replay", self.replay_port)] {
            let fits = port.is_none_or(|port| port == 0 || u32::from(port) + self.ranks - 1 <= u32::from(u16::MAX));
            if !fits {
                return Err(format!("{name} ports of {} ranks do not fit below 65536", self.ranks));
            }
        }
        Ok(())
    }

    /// How long a step of so many prompt tokens, beside decoding or not, takes.
    pub(super) fn step_time(&self, prefill_tokens: usize, decoding: bool) -> Duration {
        let prefill = prefill_tokens as f64 / self.prefill_rate;
        let decode = if decoding { 1.0 / self.decode_rate } else { 0.0 };
        Duration::try_from_secs_f64(prefill + decode).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_by_name() {
        assert_eq!(EngineConfig::default().validate(), Ok(()));
        let with = |change: fn(&mut EngineConfig)| {
            let mut config = EngineConfig::default();
            change(&mut config);
            config.validate().unwrap_err()
        };
        assert_eq!(with(|config| config.block_size = 0), "block size must be greater than 0");
        assert_eq!(with(|config| config.decode_rate = f64::NAN), "decode rate must be greater than 0");
        let error = with(|config| (config.kv_events_port, config.ranks) = (65_535, 2));
        assert_eq!(error, "kv events ports of 2 ranks do not fit below 65536");
    }

    #[test]
    fn a_step_takes_the_time_of_its_prompt_tokens_and_one_decode() {
        let config = EngineConfig { prefill_rate: 1000.0, decode_rate: 50.0, ..EngineConfig::default() };
        assert_eq!(config.step_time(500, true), Duration::from_millis(520));
        assert_eq!(config.step_time(0, true), Duration::from_millis(20));
        let endless = EngineConfig { prefill_rate: f64::INFINITY, decode_rate: f64::INFINITY, ..config };
        assert_eq!(endless.step_time(1_000_000, true), Duration::ZERO);
    }
}
