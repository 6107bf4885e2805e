//! What the users of the demo do: sessions that start with one of a few long system prompts and grow with every turn.
//! Pure and seeded: both sides of the comparison play the same one.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;

/// Token ids are drawn below this.
const VOCABULARY: u32 = 32_000;

/// Sizes of a workload.
#[derive(Clone, Debug)]
pub struct WorkloadConfig {
    /// Start of all random choices.
    pub seed: u64,
    /// Applications, each with a system prompt of its own; the first are the most popular.
    pub applications: usize,
    /// Tokens of a system prompt.
    pub system_tokens: usize,
    /// New sessions a second.
    pub sessions_per_second: f64,
    /// Turns of a session at most.
    pub max_turns: usize,
    /// Tokens of a user's message, about.
    pub message_tokens: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
    /// Time between two turns of a session, about.
    pub think_time: Duration,
    /// When the last turn starts.
    pub duration: Duration,
}

impl Default for WorkloadConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            applications: 6,
            system_tokens: 1600,
            sessions_per_second: 5.0,
            max_turns: 10,
            message_tokens: 160,
            answer_tokens: 32,
            think_time: Duration::from_millis(1800),
            duration: Duration::from_secs(20),
        }
    }
}

/// A user with an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The beginning of every prompt of it.
    pub system: Arc<[u32]>,
    /// In order of time.
    pub turns: Vec<Turn>,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When it is asked, from the start of the run, unless the answer before it is late.
    pub at: Duration,
    /// What is new in it.
    pub message: Vec<u32>,
}

/// All sessions of a run.
pub fn sessions(config: &WorkloadConfig) -> Vec<Session> {
    let mut random = Rng::with_seed(config.seed);
    let mut tokens = |count: usize| -> Vec<u32> { (0..count).map(|_| random.u32(..VOCABULARY)).collect() };
    let systems: Vec<Arc<[u32]>> =
        (0..config.applications.max(1)).map(|_| tokens(config.system_tokens).into()).collect();
    // Half of the time is for sessions to begin in, so that most of them get to grow.
    let count = (config.duration.as_secs_f64() * config.sessions_per_second / 2.0).ceil() as usize;
    (0..count).map(|_| session(config, &mut random, &systems)).collect()
}

fn session(config: &WorkloadConfig, random: &mut Rng, systems: &[Arc<[u32]>]) -> Session {
    // The smaller of two draws: the first application is the most popular, none is rare.
    let application = random.usize(..systems.len()).min(random.usize(..systems.len()));
    let mut at = config.duration.mul_f64(random.f64() / 2.0);
    let mut turns = Vec::new();
    while turns.len() < config.max_turns.max(1) && at <= config.duration {
        let size = (config.message_tokens as f64 * (0.5 + random.f64())) as usize;
        let message = (0..size.max(1)).map(|_| random.u32(..VOCABULARY)).collect();
        turns.push(Turn { at, message });
        at += config.think_time.mul_f64(0.5 + random.f64());
    }
    Session { system: Arc::clone(&systems[application]), turns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_workload_and_another_is_another() {
        let config = WorkloadConfig::default();
        assert_eq!(sessions(&config), sessions(&config));
        assert_ne!(sessions(&config), sessions(&WorkloadConfig { seed: 2, ..config }));
    }

    #[test]
    fn sessions_share_system_prompts_grow_and_end_in_time() {
        let config = WorkloadConfig::default();
        let sessions = sessions(&config);
        assert_eq!(sessions.len(), 50);
        let mut systems: Vec<_> = sessions.iter().map(|session| &session.system).collect();
        systems.sort_unstable();
        systems.dedup();
        assert!((2..=config.applications).contains(&systems.len()));
        for session in &sessions {
            assert_eq!(session.system.len(), config.system_tokens);
            assert!((1..=config.max_turns).contains(&session.turns.len()));
            assert!(session.turns.is_sorted_by(|a, b| a.at < b.at));
            assert!(session.turns.iter().all(|turn| turn.at <= config.duration && !turn.message.is_empty()));
        }
        let turns: usize = sessions.iter().map(|session| session.turns.len()).sum();
        assert!(turns > 4 * sessions.len(), "{turns} turns");
    }
}
