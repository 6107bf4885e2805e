//! Replay of a recorded trace: each request at its time, with a life after its prompt as long as recorded.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hyper::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    client::{Answer, CallError, Connection, Server},
    flags::{BenchArgs, PromptForm},
    load::choice,
    prompt::{close_list, hash_of, mix, open, push_field, push_number},
    record::{Operation, Recorder},
};

/// Longest line of a trace, in bytes.
const MAX_LINE: usize = 64 << 20;

/// One recorded request. Other fields of the line are ignored: several tools add their own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Recorded {
    /// Milliseconds from the beginning.
    timestamp: f64,
    /// Tokens of the prompt.
    input_length: u64,
    /// Tokens generated.
    output_length: u64,
    /// One id a block of the trace's block size; equal ids mean equal prompts up to there.
    hash_ids: Vec<u64>,
}

/// Reads up to `limit` requests.
///
/// # Errors
/// The line and what is wrong with it.
pub fn read(path: &Path, limit: Option<usize>, trace_block_size: u32) -> Result<Vec<Recorded>, String> {
    let file = File::open(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let mut requests = Vec::new();
    for (index, line) in BufReader::new(file).lines().enumerate().take(limit.unwrap_or(usize::MAX)) {
        let wrong = |what: String| format!("{}:{}: {what}", path.display(), index + 1);
        let line = line.map_err(|e| wrong(e.to_string()))?;
        if line.len() > MAX_LINE {
            return Err(wrong(format!("longer than {MAX_LINE} bytes")));
        }
        if line.trim().is_empty() {
            continue;
        }
        let request: Recorded = serde_json::from_str(&line).map_err(|e| wrong(e.to_string()))?;
        let blocks = request.input_length.div_ceil(u64::from(trace_block_size));
        if blocks > request.hash_ids.len() as u64 {
            return Err(wrong(format!(
                "{} ids for {blocks} blocks of {trace_block_size} tokens",
                request.hash_ids.len()
            )));
        }
        if !request.timestamp.is_finite() || request.timestamp < 0.0 {
            return Err(wrong(format!("timestamp {} is no time", request.timestamp)));
        }
        requests.push(request);
    }
    if requests.is_empty() {
        return Err(format!("{} holds no request", path.display()));
    }
    Ok(requests)
}

/// How requests become bodies, and how long they live.
#[derive(Debug)]
pub struct Replay {
    form: PromptForm,
    block_size: u64,
    trace_block_size: u64,
    model: String,
    speed: f64,
    prefill_rate: f64,
    decode_rate: f64,
    seed: u64,
    tag: String,
    /// Requests done, for the progress bar.
    pub done: AtomicU64,
}

impl Replay {
    /// As the flags say.
    ///
    /// # Errors
    /// Block sizes that do not divide.
    pub fn new(args: &BenchArgs) -> Result<Arc<Self>, String> {
        let (block_size, trace_block_size) = (args.prompts.block_size, args.trace.trace_block_size);
        if trace_block_size % block_size != 0 {
            return Err(format!(
                "--block-size {block_size} does not divide the trace's blocks of {trace_block_size} tokens"
            ));
        }
        Ok(Arc::new(Self {
            form: args.prompts.prompt,
            block_size: block_size.into(),
            trace_block_size: trace_block_size.into(),
            model: serde_json::Value::from(args.fleet.model.as_str()).to_string(),
            speed: args.trace.speed,
            prefill_rate: args.trace.prefill_rate,
            decode_rate: args.trace.decode_rate,
            seed: args.load.seed,
            tag: format!("trace-{:x}", fastrand::u64(..)),
            done: AtomicU64::new(0),
        }))
    }

    /// Replays `requests` over `connections` connections.
    pub async fn run(self: Arc<Self>, requests: Vec<Recorded>, server: &Server, connections: u32) -> Recorder {
        let pool = Arc::new(Pool::new(server, connections));
        let mut tasks = JoinSet::new();
        let mut recorder = Recorder::default();
        let began = Instant::now();
        let first = requests.first().map_or(0.0, |r| r.timestamp);
        for (number, request) in requests.into_iter().enumerate() {
            let offset = (request.timestamp - first).max(0.0) / 1000.0 / self.speed;
            let due = began + Duration::try_from_secs_f64(offset).unwrap_or(Duration::MAX / 4);
            sleep_until(due).await;
            let body = self.body(&request, number);
            tasks.spawn(Arc::clone(&self).live(request, number, body, Arc::clone(&pool)));
            while let Some(done) = tasks.try_join_next() {
                recorder.merge(done.unwrap_or_default());
            }
        }
        while let Some(done) = tasks.join_next().await {
            recorder.merge(done.unwrap_or_default());
        }
        recorder
    }

    async fn live(self: Arc<Self>, request: Recorded, number: usize, body: Vec<u8>, pool: Arc<Pool>) -> Recorder {
        let mut recorder = Recorder::default();
        let id = format!("{}-{number}", self.tag);
        let due = Instant::now();
        let answer = pool.call(Method::POST, "/select_and_reserve", body).await;
        recorder.answered(Operation::Reserve, &answer, due.elapsed());
        let reserved = answer.ok().filter(Answer::is_success);
        if let Some(answer) = &reserved {
            let uncached = choice(answer, request.input_length, &mut recorder).unwrap_or(request.input_length);
            sleep(self.simulated(uncached as f64 / self.prefill_rate)).await;
            let due = Instant::now();
            let answer = pool.call(Method::POST, &format!("/reservations/{id}/prefill_complete"), Vec::new()).await;
            recorder.answered(Operation::PrefillComplete, &answer, due.elapsed());
            sleep(self.simulated(request.output_length as f64 / self.decode_rate)).await;
            let due = Instant::now();
            let answer = pool.call(Method::DELETE, &format!("/reservations/{id}"), Vec::new()).await;
            recorder.answered(Operation::Free, &answer, due.elapsed());
            recorder.cycle();
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        recorder
    }

    fn simulated(&self, seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds / self.speed).unwrap_or(Duration::from_secs(3600))
    }

    fn body(&self, request: &Recorded, number: usize) -> Vec<u8> {
        let mut body = Vec::with_capacity(usize::try_from(request.input_length).unwrap_or(0).min(1 << 20) * 8 + 256);
        open(&mut body, &self.model, Some(&format!("{}-{number}", self.tag)));
        let stream = |position: u64, unit: u64| {
            let id = request.hash_ids[usize::try_from(position / unit).unwrap_or(usize::MAX)];
            (mix(self.seed, id.wrapping_add(1)), position % unit)
        };
        match self.form {
            PromptForm::Tokens => {
                body.extend_from_slice(b",\"token_ids\":[");
                for position in 0..request.input_length {
                    let (stream, at) = stream(position, self.trace_block_size);
                    push_number(&mut body, mix(stream, at) % super::prompt::VOCABULARY);
                }
                close_list(&mut body);
            }
            PromptForm::Hashes => {
                let (blocks, unit) = (request.input_length / self.block_size, self.trace_block_size / self.block_size);
                for (name, flip) in [(&b",\"block_hashes\":["[..], 0), (&b",\"sequence_hashes\":["[..], u64::MAX)] {
                    body.extend_from_slice(name);
                    for position in 0..blocks {
                        let (stream, at) = stream(position, unit);
                        push_number(&mut body, hash_of(stream ^ flip, at));
                    }
                    close_list(&mut body);
                }
                push_field(&mut body, "isl_tokens", request.input_length.max(1));
            }
        }
        body.push(b'}');
        body
    }
}

/// Connections for calls that come at any time. A call counts from when it is due, so waiting for one is in its latency.
struct Pool {
    free: Semaphore,
    connections: Mutex<VecDeque<Connection>>,
}

impl Pool {
    fn new(server: &Server, connections: u32) -> Self {
        let made = (0..connections).map(|_| Connection::new(server.clone())).collect();
        Self { free: Semaphore::new(connections as usize), connections: Mutex::new(made) }
    }

    async fn call(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Answer, CallError> {
        let _permit = self.free.acquire().await.map_err(|_| CallError::Connect)?;
        let connection = self.connections.lock().pop_front();
        let mut connection = connection.ok_or(CallError::Connect)?;
        let answer = connection.call(method, path, body).await;
        // The one used last is the one whose caches are warm.
        self.connections.lock().push_front(connection);
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::Value;

    use super::*;

    fn trace(lines: &str) -> Result<Vec<Recorded>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(lines.as_bytes()).unwrap();
        read(file.path(), None, 512)
    }

    fn replay(form: PromptForm) -> Replay {
        Replay {
            form,
            block_size: 16,
            trace_block_size: 512,
            model: "\"m\"".to_owned(),
            speed: 1.0,
            prefill_rate: 1.0,
            decode_rate: 1.0,
            seed: 1,
            tag: "t".to_owned(),
            done: AtomicU64::new(0),
        }
    }

    #[test]
    fn lines_are_read_and_mistakes_are_named() {
        let good = trace(
            "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 40, \"hash_ids\": [0, 1, 2], \"session_id\": 1}\n\n\
             {\"timestamp\": 105, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [0]}\n",
        );
        assert_eq!(good.unwrap().len(), 2);
        for (line, part) in [
            (
                "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 40, \"hash_ids\": [0, 1]}",
                ":1: 2 ids for 3 blocks",
            ),
            ("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 40, \"hash_ids\": [0]}", ":1: timestamp -1"),
            ("{\"timestamp\": 0}", ":1: missing field"),
            ("", "holds no request"),
        ] {
            let error = trace(line).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn equal_ids_are_equal_blocks() {
        let request = |ids: &[u64], input_length| Recorded {
            timestamp: 0.0,
            input_length,
            output_length: 1,
            hash_ids: ids.to_vec(),
        };
        let body =
            |form, request: &Recorded| -> Value { serde_json::from_slice(&replay(form).body(request, 0)).unwrap() };
        let (one, other) = (request(&[7, 8], 1000), request(&[7, 9], 600));
        let (a, b) = (body(PromptForm::Hashes, &one), body(PromptForm::Hashes, &other));
        let (a_hashes, b_hashes) = (a["block_hashes"].as_array().unwrap(), b["block_hashes"].as_array().unwrap());
        assert_eq!((a_hashes.len(), b_hashes.len()), (62, 37));
        assert_eq!(a_hashes[..32], b_hashes[..32]);
        assert_ne!(a_hashes[32], b_hashes[32]);
        assert_eq!(a["isl_tokens"], 1000);
        let (a, b) = (body(PromptForm::Tokens, &one), body(PromptForm::Tokens, &other));
        assert_eq!(a["token_ids"].as_array().unwrap().len(), 1000);
        assert_eq!(a["token_ids"].as_array().unwrap()[..512], b["token_ids"].as_array().unwrap()[..512]);
    }
}
