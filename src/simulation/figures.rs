//! What is measured of one cell: latencies, cache, balance.
//!
//! The first tenth of the arrivals is left out of every figure of requests: caches are cold and nothing is in flight
//! then. A request that never got its tokens counts as if they came at the end of the run, and ten minutes after it at the
//! earliest, so that no policy looks better for leaving some out. Sums of engines are over the whole run.

use serde::Serialize;

use super::{
    Nanos, SECOND,
    fleet::{Outcome, Record},
};

/// Share of the arrivals that only warm up, as one in this many.
const WARM_UP: usize = 10;
/// Least that a request without tokens counts as waiting: a run that refuses much ends soon.
const UNSERVED: Nanos = 600 * SECOND;
/// Tokens a second by which the time allowed for a prompt grows.
const ALLOWED_RATE: f64 = 12_500.0;
/// Time allowed for any prompt, in seconds.
const ALLOWED_BASE: f64 = 0.5;
/// Time to first token that people wait without noticing, in seconds.
const PATIENCE: f64 = 2.0;

/// A distribution of times, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// Half are below or at it.
    pub p50: f64,
    /// 90 % are.
    pub p90: f64,
    /// 99 % are.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
}

impl Times {
    /// Exact quantiles, by nearest rank; sorts `nanos`. Zeros when there are none.
    fn of(nanos: &mut [Nanos]) -> Self {
        nanos.sort_unstable();
        let Some(last) = nanos.len().checked_sub(1) else { return Self::default() };
        let at = |quantile: f64| {
            let rank = (quantile * nanos.len() as f64).ceil() as usize;
            seconds(nanos[rank.saturating_sub(1).min(last)])
        };
        let sum: u128 = nanos.iter().map(|&time| u128::from(time)).sum();
        let mean = sum as f64 / nanos.len() as f64 / 1e9;
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), mean }
    }
}

/// The figures of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Time from arrival to the first token, time in a router's queue included.
    pub ttft: Times,
    /// Time from arrival to the last token.
    pub e2e: Times,
    /// Time between two tokens of a request, in seconds: the mean over requests of their means.
    pub itl_mean: f64,
    /// Complete prompt blocks that were found in the cache of the worker, as a share of those asked.
    pub block_hit_rate: f64,
    /// Share of requests whose first token came within 2 s.
    pub within_2s: f64,
    /// Share of requests whose first token came within 0.5 s and twice the time of their prompt at 12,500 tokens a
    /// second.
    pub within_slo: f64,
    /// Prompt tokens computed by the worker that computed most, as a multiple of the mean.
    pub imbalance: f64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Requests that count.
    pub counted: u64,
    /// Requests that came and were not finished, of the whole run: refused ones, and those whose turn never came.
    pub unfinished: u64,
    /// The reason for which the first one was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Wall-clock time of a decision, in nanoseconds: the one figure that differs from run to run, unless it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_decision: Option<f64>,
}

impl Figures {
    /// Sums a run up.
    pub fn of(outcome: &Outcome) -> Self {
        let requests = &outcome.requests;
        let measured = &requests[requests.len() / WARM_UP..];
        let done: Vec<(&Record, Nanos, Nanos)> = measured
            .iter()
            .map(|record| {
                let never = outcome.ended.max(record.arrived.saturating_add(UNSERVED));
                let since = |at: Option<Nanos>| at.unwrap_or(never).saturating_sub(record.arrived);
                (record, since(record.first_token), since(record.finished))
            })
            .collect();
        let share = |count: usize| count as f64 / done.len().max(1) as f64;
        let within = |limit: &dyn Fn(&Record) -> f64| {
            let is_within = |record: &Record, ttft| record.finished.is_some() && seconds(ttft) <= limit(record);
            share(done.iter().filter(|(record, ttft, _)| is_within(record, *ttft)).count())
        };
        let gaps: Vec<f64> = done
            .iter()
            .filter(|(record, ..)| record.output_tokens > 1 && record.finished.is_some())
            .map(|(record, first, end)| seconds(end - first) / f64::from(record.output_tokens - 1))
            .collect();
        let engines = &outcome.engines;
        let sum = |of: &dyn Fn(&super::engine::EngineStats) -> u64| engines.iter().map(of).sum::<u64>();
        let computed = sum(&|engine| engine.computed_prefill_tokens);
        let most = engines.iter().map(|engine| engine.computed_prefill_tokens).max().unwrap_or(0);
        let mut ttft: Vec<Nanos> = done.iter().map(|(_, ttft, _)| *ttft).collect();
        let mut e2e: Vec<Nanos> = done.iter().map(|(.., e2e)| *e2e).collect();
        Self {
            ttft: Times::of(&mut ttft),
            e2e: Times::of(&mut e2e),
            itl_mean: gaps.iter().fold(0.0, |sum, gap| sum + gap) / gaps.len().max(1) as f64,
            block_hit_rate: sum(&|engine| engine.hit_blocks) as f64 / sum(&|engine| engine.prompt_blocks).max(1) as f64,
            within_2s: within(&|_| PATIENCE),
            within_slo: within(&|record| ALLOWED_BASE + 2.0 * f64::from(record.prompt_tokens) / ALLOWED_RATE),
            imbalance: most as f64 * engines.len() as f64 / computed.max(1) as f64,
            evictions: sum(&|engine| engine.evictions),
            counted: done.len() as u64,
            unfinished: requests.iter().filter(|record| record.finished.is_none()).count() as u64,
            refusal: outcome.refusal.clone(),
            ns_per_decision: Some(outcome.deciding.as_nanos() as f64 / outcome.decisions.max(1) as f64),
        }
    }

    /// The same without what differs from run to run.
    #[must_use]
    pub fn repeatable(&self) -> Self {
        Self { ns_per_decision: None, ..self.clone() }
    }
}

fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let mut times: Vec<Nanos> = (1..=200).rev().map(|second| second * 1_000_000_000).collect();
        let of = Times::of(&mut times);
        assert_eq!((of.p50, of.p90, of.p99, of.mean), (100.0, 180.0, 198.0, 100.5));
        assert_eq!(Times::of(&mut []), Times::default());
        assert_eq!(Times::of(&mut [7_000_000_000]).p50, 7.0);
    }

    #[test]
    fn the_first_tenth_is_left_out_and_what_was_not_finished_waited_to_the_end() {
        let outcome = refused_at_the_end(3000);
        let figures = Figures::of(&outcome);
        assert_eq!((figures.counted, figures.unfinished, figures.refusal.as_deref()), (18, 1, Some("full")));
        assert_eq!((figures.ttft.p50, figures.ttft.p90, figures.ttft.p99), (1.0, 1.0, 2981.0));
        assert_eq!((figures.e2e.p50, figures.e2e.p99), (3.0, 2981.0));
        assert!((figures.itl_mean - 0.2).abs() < 1e-9, "{}", figures.itl_mean);
        assert_eq!((figures.within_2s, figures.within_slo), (17.0 / 18.0, 0.0));
        assert_eq!(figures.ns_per_decision, Some(1000.0));
        // A run that ends soon because it serves nobody is no better for it.
        let mut outcome = refused_at_the_end(20);
        assert_eq!(Figures::of(&outcome).ttft.p99, 600.0);
        outcome.requests.iter_mut().for_each(|request| (request.first_token, request.finished) = (None, None));
        let figures = Figures::of(&outcome);
        assert_eq!((figures.ttft.p50, figures.e2e.mean, figures.within_2s), (600.0, 600.0, 0.0));
        assert!(figures.itl_mean == 0.0 && figures.itl_mean.is_sign_positive());
    }

    /// Twenty requests, of which the last is refused at 19 s; the run ends at `end`.
    fn refused_at_the_end(end: Nanos) -> Outcome {
        let second = 1_000_000_000;
        let record = |at: Nanos, ttft: Option<Nanos>| {
            let first = ttft.map(|ttft| at * second + ttft);
            Record::new(at * second, first, first.map(|first| first + 2 * second), 100, 11)
        };
        // The first would spoil every quantile; the last was refused at 19 s.
        let mut requests: Vec<Record> =
            (0..20).map(|at| record(at, Some(if at < 2 { 99 * second } else { second }))).collect();
        requests[19] = record(19, None);
        Outcome {
            requests,
            engines: Vec::new(),
            refused: 1,
            refusal: Some("full".to_owned()),
            decisions: 20,
            deciding: Duration::from_micros(20),
            ended: end * second,
        }
    }
}
