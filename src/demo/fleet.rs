//! The engines of the demo, and the workers file that names them.

use std::fmt::Write;

use super::DemoError;
use crate::engine::{Encoding, EngineConfig, MockEngine};

/// Engines, numbered from 0, each with the encoding of another real one.
#[derive(Debug)]
pub struct Fleet {
    engines: Vec<MockEngine>,
}

impl Fleet {
    /// Starts `count` engines on free ports.
    ///
    /// # Errors
    /// An engine cannot start.
    pub async fn start(count: usize, config: &EngineConfig) -> Result<Self, DemoError> {
        let mut engines = Vec::with_capacity(count);
        for number in 0..count {
            let config = EngineConfig { encoding: encoding(number).0, ..config.clone() };
            engines.push(MockEngine::start(config).await?);
        }
        Ok(Self { engines })
    }

    /// The engines.
    pub fn engines(&self) -> &[MockEngine] {
        &self.engines
    }

    /// Base URLs, by number.
    pub fn urls(&self) -> Vec<String> {
        self.engines.iter().map(MockEngine::url).collect()
    }

    /// Whether each engine has at least so many subscribers to its events.
    pub fn is_heard_by(&self, subscribers: usize) -> bool {
        self.engines.iter().all(|engine| engine.stats().iter().all(|rank| rank.subscribers >= subscribers))
    }

    /// What the engine with `number` is called, and whose events it sends.
    pub fn label(number: usize) -> String {
        format!("engine-{number} {}", encoding(number).1)
    }

    /// The fleet as a workers file.
    pub fn workers_file(&self) -> String {
        let mut text = String::from("# Written by `pointsman demo`.\nversion: 1\n");
        if let Some(engine) = self.engines.first() {
            let config = engine.config();
            let line = format!(
                "defaults: {{model_name: {}, block_size: {}, max_num_batched_tokens: {}, total_kv_blocks: {}}}\n",
                config.model, config.block_size, config.max_batched_tokens, config.num_blocks
            );
            text.push_str(&line);
        }
        text.push_str("workers:\n");
        for (number, engine) in self.engines.iter().enumerate() {
            let events = engine.kv_events_endpoint(0).unwrap_or_default();
            let replay = engine.replay_endpoint(0).map(|at| format!(", replay: \"{at}\"")).unwrap_or_default();
            let entry = writeln!(
                text,
                "  - name: engine-{number}\n    endpoint: {}\n    kv_events: {{endpoint: \"{events}\"{replay}}}",
                engine.url()
            );
            entry.expect("writing to memory cannot fail");
        }
        text
    }
}

fn encoding(number: usize) -> (Encoding, &'static str) {
    const ALL: [(Encoding, &str); 4] = [
        (Encoding::VllmMap, "vLLM"),
        (Encoding::Sglang, "SGLang"),
        (Encoding::Trtllm, "TRT-LLM"),
        (Encoding::VllmArray, "vLLM<0.24"),
    ];
    ALL[number % ALL.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::file;

    #[tokio::test]
    async fn the_workers_file_is_one_that_selectors_take() {
        let fleet = Fleet::start(3, &EngineConfig::default()).await.unwrap();
        let workers = file::parse(&fleet.workers_file(), "workers.yaml").unwrap();
        assert_eq!(workers.len(), 3);
        let text = format!("{workers:?}");
        for engine in fleet.engines() {
            let endpoints = [engine.url(), engine.kv_events_endpoint(0).unwrap(), engine.replay_endpoint(0).unwrap()];
            assert!(endpoints.iter().all(|endpoint| text.contains(endpoint.as_str())), "{text}");
        }
    }
}
