//! What is recorded of each request, and the report made of it.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::client::{Answer, CallError};

/// Times are recorded from 1 us to this, with three digits.
const LONGEST: u64 = 120_000_000;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `POST /select`
    Select,
    /// `POST /select_and_reserve`
    Reserve,
    /// `POST /reservations/{id}/prefill_complete`
    PrefillComplete,
    /// `DELETE /reservations/{id}`
    Free,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Select, Self::Reserve, Self::PrefillComplete, Self::Free];

    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Select => "select",
            Self::Reserve => "select_and_reserve",
            Self::PrefillComplete => "prefill_complete",
            Self::Free => "free",
        }
    }
}

/// What one connection saw.
#[derive(Debug)]
pub struct Recorder {
    latencies: [Histogram<u64>; Operation::ALL.len()],
    cycles: u64,
    errors: BTreeMap<String, u64>,
    picks: BTreeMap<u64, u64>,
    tokens: u64,
    uncached: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds and digits are valid");
        Self {
            latencies: std::array::from_fn(|_| histogram()),
            cycles: 0,
            errors: BTreeMap::new(),
            picks: BTreeMap::new(),
            tokens: 0,
            uncached: 0,
        }
    }
}

impl Recorder {
    /// A request was answered, with success or not, after `time`.
    pub fn answered(&mut self, operation: Operation, answer: &Result<Answer, CallError>, time: Duration) {
        match answer {
            Ok(answer) if answer.is_success() => {
                let micros = u64::try_from(time.as_micros()).unwrap_or(LONGEST);
                self.latencies[operation as usize].saturating_record(micros.max(1));
            }
            Ok(answer) => self.error(&format!("{} {}", operation.name(), answer.status)),
            Err(error) => self.error(&format!("{} {}", operation.name(), error.reason())),
        }
    }

    fn error(&mut self, what: &str) {
        *self.errors.entry(what.to_owned()).or_default() += 1;
    }

    /// A selection chose `worker`, for a prompt of `tokens` of which `uncached` must be computed.
    pub fn chosen(&mut self, worker: u64, tokens: u64, uncached: u64) {
        *self.picks.entry(worker).or_default() += 1;
        self.tokens += tokens;
        self.uncached += uncached;
    }

    /// A unit of load is done.
    pub fn cycle(&mut self) {
        self.cycles += 1;
    }

    /// Adds what another connection saw.
    pub fn merge(&mut self, other: Self) {
        for (mine, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.add(theirs).expect("all histograms have the same bounds");
        }
        self.cycles += other.cycles;
        for (what, count) in other.errors {
            *self.errors.entry(what).or_default() += count;
        }
        for (worker, count) in other.picks {
            *self.picks.entry(worker).or_default() += count;
        }
        self.tokens += other.tokens;
        self.uncached += other.uncached;
    }
}

/// What was measured beside the requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Time over which was measured.
    pub elapsed: Duration,
    /// CPU time of the server in it.
    pub server_cpu: Option<Duration>,
    /// Memory of the server at its end, in bytes.
    pub server_resident: Option<u64>,
    /// CPU time of this program in it.
    pub client_cpu: Option<Duration>,
}

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What was offered, in the words of the flags.
    pub load: serde_json::Value,
    /// Seconds measured.
    pub elapsed_seconds: f64,
    /// Units of load done.
    pub cycles: u64,
    /// Units of load a second.
    pub cycles_per_second: f64,
    /// Requests answered with success.
    pub requests: u64,
    /// Requests that failed, by kind and status or reason.
    pub errors: BTreeMap<String, u64>,
    /// Latency by kind of request, in microseconds.
    pub latency_us: BTreeMap<&'static str, Latency>,
    /// CPU time of the server for a unit of load, in microseconds.
    pub server_cpu_us_per_cycle: Option<f64>,
    /// CPU time of the server for a request, in microseconds.
    pub server_cpu_us_per_request: Option<f64>,
    /// Processors that the server kept busy.
    pub server_cpu_cores: Option<f64>,
    /// Memory of the server at the end, in bytes.
    pub server_resident_bytes: Option<u64>,
    /// CPU time of this program for a request, in microseconds.
    pub client_cpu_us_per_request: Option<f64>,
    /// Share of prompt tokens that the server took for cached.
    pub cached_share: Option<f64>,
    /// Workers chosen at least once.
    pub workers_chosen: usize,
    /// How often the most chosen worker was chosen, as a multiple of the mean.
    pub busiest_worker: Option<f64>,
}

/// Quantiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Half are below.
    pub p50: u64,
    /// 90 % are below.
    pub p90: u64,
    /// 99 % are below.
    pub p99: u64,
    /// 99.9 % are below.
    pub p999: u64,
    /// Longest.
    pub max: u64,
}

impl Report {
    /// Sums up.
    pub fn new(load: serde_json::Value, recorder: &Recorder, measured: Measured) -> Self {
        let seconds = measured.elapsed.as_secs_f64();
        let per = |time: Option<Duration>, count: u64| {
            time.filter(|_| count > 0).map(|t| round(t.as_secs_f64() * 1e6 / count as f64, 2))
        };
        let latency = |operation: Operation| {
            let histogram = &recorder.latencies[operation as usize];
            let at = |quantile| histogram.value_at_quantile(quantile);
            let latency = Latency {
                count: histogram.len(),
                mean: round(histogram.mean(), 1),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: histogram.max(),
            };
            (!histogram.is_empty()).then_some((operation.name(), latency))
        };
        let requests = recorder.latencies.iter().map(Histogram::len).sum();
        let picks: u64 = recorder.picks.values().sum();
        let busiest = recorder.picks.values().max();
        Self {
            load,
            elapsed_seconds: round(seconds, 3),
            cycles: recorder.cycles,
            cycles_per_second: round(recorder.cycles as f64 / seconds.max(f64::MIN_POSITIVE), 1),
            requests,
            errors: recorder.errors.clone(),
            latency_us: Operation::ALL.into_iter().filter_map(latency).collect(),
            server_cpu_us_per_cycle: per(measured.server_cpu, recorder.cycles),
            server_cpu_us_per_request: per(measured.server_cpu, requests),
            server_cpu_cores: measured.server_cpu.map(|cpu| round(cpu.as_secs_f64() / seconds, 2)),
            server_resident_bytes: measured.server_resident,
            client_cpu_us_per_request: per(measured.client_cpu, requests),
            cached_share: (recorder.tokens > 0)
                .then(|| round(1.0 - recorder.uncached as f64 / recorder.tokens as f64, 4)),
            workers_chosen: recorder.picks.len(),
            busiest_worker: busiest.map(|b| round(*b as f64 * recorder.picks.len() as f64 / picks as f64, 2)),
        }
    }

    /// Prints a table for people.
    pub fn print(&self) {
        println!("\n{} cycles in {:.1} s: {:.0} a second", self.cycles, self.elapsed_seconds, self.cycles_per_second);
        println!(
            "\n{:<22}{:>10}{:>10}{:>9}{:>9}{:>9}{:>9}{:>10}",
            "latency, us", "count", "mean", "p50", "p90", "p99", "p99.9", "max"
        );
        for (name, l) in &self.latency_us {
            println!(
                "{name:<22}{:>10}{:>10.1}{:>9}{:>9}{:>9}{:>9}{:>10}",
                l.count, l.mean, l.p50, l.p90, l.p99, l.p999, l.max
            );
        }
        println!();
        if let (Some(cycle), Some(request), Some(cores)) =
            (self.server_cpu_us_per_cycle, self.server_cpu_us_per_request, self.server_cpu_cores)
        {
            println!("server CPU     {cycle:.1} us a cycle, {request:.1} us a request, {cores:.2} cores");
        }
        if let Some(bytes) = self.server_resident_bytes {
            println!("server memory  {:.0} MiB", bytes as f64 / f64::from(1 << 20));
        }
        if let Some(client) = self.client_cpu_us_per_request {
            println!("client CPU     {client:.1} us a request");
        }
        if let Some(cached) = self.cached_share {
            println!("cached         {:.1} % of prompt tokens, by the server's estimate", cached * 100.0);
        }
        if let Some(busiest) = self.busiest_worker {
            println!("workers        {} chosen, the busiest {busiest:.2} times the mean", self.workers_chosen);
        }
        for (what, count) in &self.errors {
            println!("FAILED         {what}: {count}");
        }
    }
}

fn round(number: f64, digits: i32) -> f64 {
    let factor = 10_f64.powi(digits);
    (number * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_adds_up_what_connections_saw() {
        let mut total = Recorder::default();
        for worker in [1, 1, 1, 2] {
            let mut one = Recorder::default();
            let answer = Ok(Answer { status: 200, body: bytes::Bytes::new() });
            one.answered(Operation::Reserve, &answer, Duration::from_micros(100 * worker));
            one.answered(Operation::Free, &Ok(Answer { status: 404, body: bytes::Bytes::new() }), Duration::ZERO);
            one.chosen(worker, 100, 25);
            one.cycle();
            total.merge(one);
        }
        let measured = Measured {
            elapsed: Duration::from_secs(2),
            server_cpu: Some(Duration::from_millis(1)),
            ..Measured::default()
        };
        let report = Report::new(serde_json::Value::Null, &total, measured);
        assert_eq!((report.cycles, report.requests, report.cycles_per_second), (4, 4, 2.0));
        assert_eq!(report.errors["free 404"], 4);
        assert_eq!(report.server_cpu_us_per_cycle, Some(250.0));
        assert_eq!(report.cached_share, Some(0.75));
        assert_eq!((report.workers_chosen, report.busiest_worker), (2, Some(1.5)));
        assert_eq!(report.latency_us["select_and_reserve"].p50, 100);
        assert_eq!(report.latency_us["select_and_reserve"].max, 200);
    }
}
