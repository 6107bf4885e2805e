//! Reads a workers file again: of ten thousand entries, only those that changed are parsed.
//!
//! The result is that of reading the whole text. Where a parser stands at the beginning of an entry of a block sequence
//! depends on nothing but the structure that is open there, once anchors, aliases and tags are ruled out. So lines that
//! were an entry are the same entry again, wherever another one may begin. Whether lines that are new are entries, a short
//! text tells: what stands in front of the first entry, these lines, and one more entry. There has to be an entry on each
//! line where one was expected, and on no other. Whatever is not as simple as that, errors above all, is left to a reading
//! of the whole text.

use std::collections::HashMap;

use super::{
    FileError, document,
    expand::{Expanded, assemble, expand},
    schema::{Defaults, Document},
};
use crate::selection::catalog::DesiredWorker;

/// What gives a text meanings that reach past an entry, and line ends that are counted in other ways.
const FAR_REACHING: [u8; 4] = [b'&', b'*', b'!', b'\r'];
/// Bytes compared at once when the change is looked for.
const STRIDE: usize = 4096;

/// The last text that was good, if it can be read again by its changes.
#[derive(Debug, Default)]
pub struct LastReading(Option<Parts>);

impl LastReading {
    /// The workers of `text`.
    ///
    /// # Errors
    /// [`FileError`]; never a part of the workers.
    pub fn read(&mut self, text: String, file: &str) -> Result<Vec<DesiredWorker>, FileError> {
        // After a text that is refused, the next one is read whole.
        let last = self.0.take();
        if let Some((parts, workers)) = last.and_then(|last| last.reread(&text, file)) {
            self.0 = Some(parts);
            return Ok(workers);
        }
        let Document { defaults, workers, .. } = document(&text, file)?;
        let defaults = defaults.unwrap_or_default();
        let lines = workers.iter().map(|entry| (entry.referenced.line(), entry.referenced.column()));
        let begins = Begins::find(&text, 0, lines);
        let entries = expand(workers, &defaults, file)?;
        let workers = assemble(&entries, file)?;
        self.0 = begins.filter(|_| !reaches_far(&text)).map(|Begins { at, indent }| Parts {
            text,
            defaults,
            entries,
            begins: at,
            indent,
        });
        Ok(workers)
    }
}

/// A text, and where the parts of it are.
#[derive(Debug)]
struct Parts {
    text: String,
    defaults: Defaults,
    /// At least one.
    entries: Vec<Expanded>,
    /// Offset of the line of each entry, which begins with `indent` spaces and a dash.
    begins: Vec<usize>,
    indent: usize,
}

impl Parts {
    /// Reads `text` by what it changes; nothing where that is not possible.
    fn reread(mut self, text: &str, file: &str) -> Option<(Self, Vec<DesiredWorker>)> {
        if reaches_far(text) {
            return None;
        }
        let (old, new) = (self.text.as_bytes(), text.as_bytes());
        let before = common_prefix(old, new);
        let behind = common_suffix(&old[before..], &new[before..]);
        // The first entry that may differ: its dash and the space behind it are the same.
        let first = self.begins.partition_point(|begin| begin + self.indent + 2 <= before).checked_sub(1)?;
        // The next one that does not, in both texts at the beginning of a line.
        let same = self.begins.partition_point(|begin| old.len() - begin > behind).max(first + 1);
        let in_new = |begin: usize| new.len() - (old.len() - begin);
        let next = (same..self.begins.len()).find(|n| new[in_new(self.begins[*n]) - 1] == b'\n');
        let (next, end) = next.map_or((self.begins.len(), new.len()), |n| (n, in_new(self.begins[n])));
        let from = self.begins[first];
        let (head, changed) = (&text[..self.begins[0]], &text[from..end]);
        let reaches_end = next == self.begins.len();

        // Some stand between two changes, or have moved. What follows the last entry of all may be no entry, so that one
        // is always parsed.
        let known: HashMap<&str, usize> = (first..next.min(self.begins.len() - 1))
            .map(|n| (&self.text[self.begins[n]..self.begins[n + 1]], n))
            .collect();
        let pieces = pieces(changed, self.indent);
        let (mut short, mut lines) = (head.to_owned(), Vec::new());
        let mut line = line_count(head) + 1;
        let mut sources = Vec::with_capacity(pieces.len());
        for (n, (_, piece)) in pieces.iter().enumerate() {
            let is_last = reaches_end && n + 1 == pieces.len();
            let source = known.get(piece).copied().filter(|_| !is_last);
            if source.is_none() {
                lines.push(line);
                line += line_count(piece);
                short.push_str(piece);
            }
            sources.push(source);
        }
        if !reaches_end {
            lines.push(line);
            short.push_str(&" ".repeat(self.indent));
            short.push_str("- {}\n");
        }
        let Document { defaults, mut workers, .. } = document(&short, file).ok()?;
        let defaults = defaults.unwrap_or_default();
        // Every piece must be an entry, which ends where the next one begins.
        if defaults != self.defaults || !workers.iter().map(|entry| entry.referenced.line()).eq(lines) {
            return None;
        }
        if !reaches_end {
            workers.pop();
        }

        let mut parsed = expand(workers, &defaults, file).ok()?.into_iter();
        let behind = self.entries.split_off(next);
        let mut old: Vec<_> = self.entries.split_off(first).into_iter().map(Some).collect();
        for source in sources {
            // An entry that is there twice is an error, told by a reading of the whole.
            self.entries.push(source.map_or_else(|| parsed.next(), |n| old[n - first].take())?);
        }
        self.entries.extend(behind);
        let behind: Vec<usize> = self.begins[next..].iter().map(|begin| in_new(*begin)).collect();
        self.begins.truncate(first);
        self.begins.extend(pieces.iter().map(|(offset, _)| from + offset).chain(behind));
        let workers = assemble(&self.entries, file).ok()?;
        text.clone_into(&mut self.text);
        Some((self, workers))
    }
}

/// Where entries of a block sequence begin.
struct Begins {
    at: Vec<usize>,
    indent: usize,
}

impl Begins {
    /// Finds the entries that are at these lines and columns of `text`, both counted from 1; offsets count from `from`.
    /// Nothing where one is not on the line of its dash, or where there is none.
    fn find(text: &str, from: usize, places: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let (mut at, mut indent) = (Vec::new(), None);
        let (mut line, mut offset) = (1, 0);
        for (wanted, column) in places {
            if wanted < line || (wanted == line && !at.is_empty()) {
                return None;
            }
            while line < wanted {
                offset += text[offset..].find('\n')? + 1;
                line += 1;
            }
            let column = usize::try_from(column).ok()?;
            let lead = text.as_bytes()[offset..].get(..column.checked_sub(1)?)?;
            let dash = lead.iter().position(|byte| *byte != b' ')?;
            let (_, rest) = lead[dash..].split_first().filter(|(byte, _)| **byte == b'-')?;
            if rest.is_empty() || rest.iter().any(|byte| *byte != b' ') || indent.is_some_and(|i| i != dash) {
                return None;
            }
            indent = Some(dash);
            at.push(from + offset);
        }
        Some(Self { at, indent: indent? })
    }
}

/// `text`, cut before every line that begins as an entry does, with the offsets of the pieces.
fn pieces(text: &str, indent: usize) -> Vec<(usize, &str)> {
    let dash = " ".repeat(indent) + "- ";
    let (mut pieces, mut begin, mut offset) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        if offset > begin && line.starts_with(&dash) {
            pieces.push((begin, &text[begin..offset]));
            begin = offset;
        }
        offset += line.len();
    }
    pieces.push((begin, &text[begin..]));
    pieces
}

fn reaches_far(text: &str) -> bool {
    text.bytes().any(|byte| FAR_REACHING.contains(&byte))
}

fn line_count(text: &str) -> u64 {
    text.bytes().map(|byte| u64::from(byte == b'\n')).sum()
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let strides = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE)).take_while(|(a, b)| a == b).count();
    let same = strides * STRIDE;
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let strides = a.rchunks_exact(STRIDE).zip(b.rchunks_exact(STRIDE)).take_while(|(a, b)| a == b).count();
    let same = strides * STRIDE;
    let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
    same + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
