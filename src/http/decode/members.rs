//! Splits a request into the arrays of integers, read at once, and the rest of its members, left to `serde_json`.
//!
//! Invariant: when the rest decodes, the whole body decodes to the same value with the arrays put in. `None` whenever
//! that cannot be promised: the caller decodes the whole body then.

use super::integers;

/// Nesting followed here; deeper is left to the library and its own limit.
const MAX_DEPTH: usize = 32;

/// Arrays found at the top level, and an object of everything else.
#[derive(Debug, Default)]
pub(super) struct Split {
    pub token_ids: Option<Vec<u32>>,
    pub block_hashes: Option<Vec<i64>>,
    pub sequence_hashes: Option<Vec<i64>>,
    pub rest: Vec<u8>,
}

/// Splits the object at the start of `body`. Bytes after it are not looked at.
pub(super) fn split(body: &[u8]) -> Option<Split> {
    let mut split = Split { rest: Vec::with_capacity(256), ..Split::default() };
    let mut seen = [false; 3];
    split.rest.push(b'{');
    let mut at = integers::skip_space(body, 0);
    if *body.get(at)? != b'{' {
        return None;
    }
    at = integers::skip_space(body, at + 1);
    if *body.get(at)? != b'}' {
        loop {
            at = member(body, at, &mut split, &mut seen)?;
            match *body.get(at)? {
                b',' => at = integers::skip_space(body, at + 1),
                b'}' => break,
                _ => return None,
            }
        }
    }
    split.rest.push(b'}');
    Some(split)
}

/// Takes the member at `start`; returns the position of what follows it.
fn member(body: &[u8], start: usize, split: &mut Split, seen: &mut [bool; 3]) -> Option<usize> {
    let key_end = skip_string(body, start)?;
    let key = &body[start + 1..key_end - 1];
    // An escaped key may spell any name.
    if key.contains(&b'\\') {
        return None;
    }
    let colon = integers::skip_space(body, key_end);
    if *body.get(colon)? != b':' {
        return None;
    }
    let at = integers::skip_space(body, colon + 1);
    let array = *body.get(at)? == b'[';
    let slot = match key {
        b"token_ids" => Some(0),
        b"block_hashes" => Some(1),
        b"sequence_hashes" => Some(2),
        _ => None,
    };
    if let Some(slot) = slot
        && std::mem::replace(&mut seen[slot], true)
    {
        return None;
    }
    let end = match (slot, array) {
        (Some(0), true) => take(body, at, &mut split.token_ids)?,
        (Some(1), true) => take(body, at, &mut split.block_hashes)?,
        (Some(2), true) => take(body, at, &mut split.sequence_hashes)?,
        _ => {
            let end = skip_value(body, at)?;
            if split.rest.len() > 1 {
                split.rest.push(b',');
            }
            split.rest.extend_from_slice(&body[start..end]);
            end
        }
    };
    Some(integers::skip_space(body, end))
}

fn take<T: integers::Integer>(body: &[u8], at: usize, into: &mut Option<Vec<T>>) -> Option<usize> {
    let (values, end) = integers::parse(body, at)?;
    *into = Some(values);
    Some(end)
}

/// The position after the string whose quote is at `at`.
fn skip_string(body: &[u8], at: usize) -> Option<usize> {
    if *body.get(at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    loop {
        match *body.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The position after the value at `at`. Its syntax is not checked: it is copied, and the library checks it.
fn skip_value(body: &[u8], at: usize) -> Option<usize> {
    match *body.get(at)? {
        b'"' => skip_string(body, at),
        b'[' | b'{' => skip_nested(body, at),
        _ => {
            let len = body[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b' ' | b'\n' | b'\r' | b'\t'))?;
            Some(at + len)
        }
    }
}

fn skip_nested(body: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0;
    loop {
        match *body.get(at)? {
            b'"' => {
                at = skip_string(body, at)?;
                continue;
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return None;
                }
            }
            b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}
