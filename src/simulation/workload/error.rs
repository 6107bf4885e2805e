//! What can be wrong with a workload: its file, a line of it, or the load asked of it.

use std::{io, path::PathBuf};

use super::LEVELS;

/// Why there is no workload, or no more of it.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The trace cannot be read.
    #[error("cannot read trace {path}")]
    Io {
        /// The trace.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of the trace is not a request.
    #[error("trace {path}, line {line}")]
    Line {
        /// The trace.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        source: LineError,
    },
    /// A pipe or a folder: what is read is gone, and there is no second time.
    #[error("trace {path} is no file; it is read more than once, so a pipe will not do")]
    NoFile {
        /// The trace.
        path: PathBuf,
    },
    /// The trace is not what it was when it was opened.
    #[error("trace {path} changed while it was used: it had {before} requests, and now {now}")]
    Changed {
        /// The trace.
        path: PathBuf,
        /// Requests there were.
        before: u64,
        /// Requests there are.
        now: u64,
    },
    /// The trace has no requests.
    #[error("trace {path} has no requests")]
    Empty {
        /// The trace.
        path: PathBuf,
    },
    /// The requests would be spread over more time than a simulation can have.
    #[error("requests would arrive over more than {days} days at this load")]
    Span {
        /// The limit.
        days: u64,
    },
    /// More requests than a run should have.
    #[error("{requests:.3e} requests at this load are more than {most} a run")]
    Requests {
        /// How many there would be.
        requests: f64,
        /// The limit.
        most: u64,
    },
    /// No such level.
    #[error("load level {level} is not one of 1 to {LEVELS}")]
    Level {
        /// The one asked for.
        level: u8,
    },
    /// A load or a fleet that is not positive.
    #[error("the load has to be a positive number, for one worker or more")]
    Load,
}

/// What is wrong with a line of a trace.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not a JSON object with the fields of a request.
    #[error("{message}, column {column}")]
    Json {
        /// What the parser said.
        message: String,
        /// Counted from 1.
        column: usize,
    },
    /// More bytes than a line may have.
    #[error("longer than {limit} bytes")]
    Long {
        /// The limit.
        limit: usize,
    },
    /// Earlier than the line before, negative or beyond what fits.
    #[error("timestamp {timestamp} is negative, too large or earlier than the one before")]
    Timestamp {
        /// Milliseconds.
        timestamp: f64,
    },
    /// No tokens in the prompt or none to generate.
    #[error("{field} is 0")]
    NoTokens {
        /// The field.
        field: &'static str,
    },
    /// Not one id for each block, the partial one at the end included.
    #[error("{ids} hash_ids for an input_length of {input_length}, which has {blocks} blocks of {block_size}")]
    Blocks {
        /// Ids there are.
        ids: usize,
        /// Tokens of the prompt.
        input_length: u32,
        /// Blocks they fill, the last perhaps in part.
        blocks: u32,
        /// Tokens of a block.
        block_size: u32,
    },
    /// Negative, beyond what fits, or a start earlier than the one before.
    #[error("{field} of {seconds} s is negative, too large or earlier than the one before")]
    Time {
        /// The field.
        field: &'static str,
        /// As it was given.
        seconds: f64,
    },
    /// A session that asks nothing.
    #[error("no turns")]
    NoTurns,
    /// Not one id for each complete block of the prompt, or more than the answer can complete.
    #[error(
        "{ids} block ids for an input_length of {input_length}, which has {blocks} complete blocks of {block_size}"
    )]
    CompleteBlocks {
        /// Ids there are.
        ids: usize,
        /// Tokens of the prompt.
        input_length: u32,
        /// Blocks they fill.
        blocks: u32,
        /// Tokens of a block.
        block_size: u32,
    },
}
