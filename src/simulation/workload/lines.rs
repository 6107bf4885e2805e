//! Files with a JSON object a line, read as a stream: no line is longer than it may be, and every fault has its number.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use super::{LineError, WorkloadError};

/// Bytes a line may have: a prompt of 20 million tokens with ids of 20 digits.
const LIMIT: usize = 1 << 20;

/// What some editors begin a text with.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file at one of its lines.
pub(super) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    buffer: Vec<u8>,
    number: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self, WorkloadError> {
        let file = File::open(path).map_err(|source| WorkloadError::Io { path: path.to_owned(), source })?;
        let reader = BufReader::with_capacity(1 << 16, file);
        Ok(Self { path: path.to_owned(), reader, buffer: Vec::new(), number: 0 })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Goes to the next line that is not blank; whether there is one.
    pub(super) fn advance(&mut self) -> Result<bool, WorkloadError> {
        loop {
            self.buffer.clear();
            self.number += 1;
            let read: io::Result<usize> =
                self.reader.by_ref().take(LIMIT as u64 + 1).read_until(b'\n', &mut self.buffer);
            if read.map_err(|source| WorkloadError::Io { path: self.path.clone(), source })? == 0 {
                return Ok(false);
            }
            if self.buffer.len() > LIMIT {
                return Err(self.fault(LineError::Long { limit: LIMIT }));
            }
            if self.number == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.drain(..BYTE_ORDER_MARK.len());
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// What the line says.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, LineError> {
        serde_json::from_slice(self.buffer.trim_ascii_end()).map_err(|error| {
            let column = error.column();
            let text = error.to_string();
            let message = text.split(" at line ").next().unwrap_or_default().to_owned();
            LineError::Json { message, column }
        })
    }

    /// What is wrong with the line, with its number.
    pub(super) fn fault(&self, source: LineError) -> WorkloadError {
        WorkloadError::Line { path: self.path.clone(), line: self.number, source }
    }
}
