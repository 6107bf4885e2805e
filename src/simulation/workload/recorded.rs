//! Sessions of a file: whatever was asked of a fleet, with the think times and block ids it was asked with.
//!
//! A JSON object a line: `start`, seconds from the beginning, no earlier than the line before, and `turns`, each with
//! `think` (seconds from the end of the turn before), `input_length`, `output_length` and `blocks`, the ids of the
//! complete blocks of the prompt, which those that the answer completes may follow. The load is what the file says;
//! neither fleet nor seed changes it.

use std::{path::PathBuf, sync::Arc};

use serde::Deserialize;

use super::{LineError, SPAN, Session, Sessions, Turn, WorkloadError, lines::Lines};
use crate::simulation::{Nanos, SECOND};

/// A file of sessions that was read.
#[derive(Debug)]
pub struct Recorded {
    name: String,
    block_size: u32,
    requests: u64,
    sessions: Arc<[Session]>,
}

#[derive(Deserialize)]
struct Line {
    start: f64,
    turns: Vec<TurnRecord>,
}

#[derive(Deserialize)]
struct TurnRecord {
    think: f64,
    input_length: u32,
    output_length: u32,
    blocks: Vec<u64>,
}

impl Recorded {
    /// Reads a file whose blocks have `block_size` tokens, 1 or more. `name` is that of tables.
    pub fn open(name: impl Into<String>, path: impl Into<PathBuf>, block_size: u32) -> Result<Self, WorkloadError> {
        let path = path.into();
        let mut lines = Lines::open(&path)?;
        let mut sessions: Vec<Session> = Vec::new();
        while lines.advance()? {
            let earliest = sessions.last().map_or(0, |session| session.start);
            let read = lines.parse().and_then(|line| session(sessions.len() as u64, line, earliest, block_size));
            sessions.push(read.map_err(|error| lines.fault(error))?);
        }
        if sessions.is_empty() {
            return Err(WorkloadError::Empty { path });
        }
        let requests = sessions.iter().map(|session| session.turns.len() as u64).sum();
        Ok(Self { name: name.into(), block_size: block_size.max(1), requests, sessions: sessions.into() })
    }

    /// Name in tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens of its blocks.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Requests, all turns counted.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The sessions.
    pub fn sessions(&self) -> Sessions {
        let sessions = Arc::clone(&self.sessions);
        Box::new((0..sessions.len()).map(move |place| Ok(sessions[place].clone())))
    }
}

fn session(id: u64, line: Line, earliest: Nanos, block_size: u32) -> Result<Session, LineError> {
    let start = time("start", line.start)?;
    if start < earliest {
        return Err(LineError::Time { field: "start", seconds: line.start });
    }
    if line.turns.is_empty() {
        return Err(LineError::NoTurns);
    }
    let turns = line.turns.into_iter().map(|turn| {
        let TurnRecord { think, input_length, output_length, blocks } = turn;
        let think = time("think", think)?;
        for (field, tokens) in [("input_length", input_length), ("output_length", output_length)] {
            if tokens == 0 {
                return Err(LineError::NoTokens { field });
            }
        }
        let complete = input_length / block_size.max(1);
        // The last token of an answer is never computed.
        let most = (u64::from(input_length) + u64::from(output_length) - 1) / u64::from(block_size.max(1));
        if !(u64::from(complete)..=most).contains(&(blocks.len() as u64)) {
            return Err(LineError::CompleteBlocks { ids: blocks.len(), input_length, blocks: complete, block_size });
        }
        Ok(Turn { think, prompt_tokens: input_length, output_tokens: output_length, blocks: blocks.into() })
    });
    Ok(Session { id, start, turns: turns.collect::<Result<_, _>>()? })
}

fn time(field: &'static str, seconds: f64) -> Result<Nanos, LineError> {
    let nanos = (seconds * SECOND as f64).round();
    if (0.0..=SPAN as f64).contains(&nanos) { Ok(nanos as Nanos) } else { Err(LineError::Time { field, seconds }) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    fn read(text: &str) -> Result<Recorded, String> {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Recorded::open("recorded", file.path(), 32).map_err(|error| match error {
            WorkloadError::Line { line, source, .. } => format!("{line}: {source}"),
            other => other.to_string(),
        })
    }

    const FIRST: &str =
        r#"{"start": 0.5, "turns": [{"think": 0, "input_length": 70, "output_length": 3, "blocks": [7, 9]}]}"#;

    #[test]
    fn lines_become_sessions() {
        let second = r#"{"start": 0.5, "turns": [
            {"think": 0, "input_length": 31, "output_length": 1, "blocks": []},
            {"think": 1.25, "input_length": 64, "output_length": 33, "blocks": [7, 8, 3]}]}"#;
        let recorded = read(&format!("{FIRST}\n\n{}\n", second.replace('\n', ""))).unwrap();
        assert_eq!((recorded.requests(), recorded.block_size()), (3, 32));
        let sessions: Vec<Session> = recorded.sessions().collect::<Result<_, _>>().unwrap();
        let turn = |think, prompt_tokens, output_tokens, blocks: &[u64]| Turn {
            think,
            prompt_tokens,
            output_tokens,
            blocks: blocks.into(),
        };
        let turns = vec![turn(0, 31, 1, &[]), turn(1_250_000_000, 64, 33, &[7, 8, 3])];
        let first = Session { id: 0, start: 500_000_000, turns: vec![turn(0, 70, 3, &[7, 9])] };
        assert_eq!(sessions, [first, Session { id: 1, start: 500_000_000, turns }]);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let faults = [
            (
                r#"{"start": 0.4, "turns": [{"think": 0, "input_length": 1, "output_length": 1, "blocks": []}]}"#,
                "start of 0.4 s is",
            ),
            (r#"{"start": 1, "turns": []}"#, "no turns"),
            (
                r#"{"start": 1, "turns": [{"think": -1, "input_length": 1, "output_length": 1, "blocks": []}]}"#,
                "think of -1 s is",
            ),
            (
                r#"{"start": 1, "turns": [{"think": 0, "input_length": 0, "output_length": 1, "blocks": []}]}"#,
                "input_length is 0",
            ),
            (
                r#"{"start": 1, "turns": [{"think": 0, "input_length": 9, "output_length": 0, "blocks": []}]}"#,
                "output_length is 0",
            ),
            (
                r#"{"start": 1, "turns": [{"think": 0, "input_length": 64, "output_length": 1, "blocks": [1]}]}"#,
                "1 block ids for an input_length of 64",
            ),
            (r#"{"start": 1}"#, "missing field `turns`"),
        ];
        for (line, fault) in faults {
            let error = read(&format!("{FIRST}\n{line}\n")).unwrap_err();
            assert!(error.starts_with(&format!("2: {fault}")), "{error}");
        }
        assert!(read("\n").unwrap_err().ends_with("has no requests"));
    }
}
