//! The answer to a head that is no HTTP. hyper writes it by itself, without a body; this gives it the body of all errors.
//!
//! It is recognised by what none of our own answers is: a 4xx without content that ends a write.

use std::io::IoSlice;

/// What hyper's answer says of its body.
const EMPTY: &[u8] = b"content-length: 0\r\n";
/// Longest such answer.
const LONGEST: usize = 512;

/// What to send instead of `slices`, if they end with hyper's answer to a malformed head: all before it, its head, and a
/// body.
pub(super) fn with_body(slices: &[IoSlice<'_>]) -> Option<Vec<u8>> {
    // The head is never spread over two.
    let at = slices.iter().rposition(|slice| !slice.is_empty())?;
    let (before, bytes) = (&slices[..at], &*slices[at]);
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let searched = bytes.len().saturating_sub(LONGEST);
    let start = searched + last(&bytes[searched..], b"HTTP/1.1 4")?;
    let head = &bytes[start..];
    let reason = match head.get(9..12)? {
        b"400" => "malformed HTTP request",
        b"414" => "request URI is too long",
        b"431" => "request head is too long",
        _ => return None,
    };
    let empty = last(head, EMPTY)?;
    let body = format!("{{\"error\":\"{reason}\"}}");
    let described = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let mut answer: Vec<u8> = before.iter().flat_map(|slice| slice.iter().copied()).collect();
    let (kept, rest) = (&bytes[..start + empty], &head[empty + EMPTY.len()..]);
    for part in [kept, described.as_bytes(), rest, body.as_bytes()] {
        answer.extend_from_slice(part);
    }
    Some(answer)
}

fn last(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";
    const HYPERS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";

    #[test]
    fn the_last_answer_gets_a_body_and_those_before_stay() {
        let slices = [OURS, HYPERS, b""].map(IoSlice::new);
        let answer = String::from_utf8(with_body(&slices).expect("hyper's")).expect("text");
        let expected = "[]HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\n\
                        content-length: 34\r\ndate: now\r\n\r\n{\"error\":\"malformed HTTP request\"}";
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(expected), "{answer}");
        let together = [OURS, HYPERS].concat();
        assert_eq!(with_body(&[IoSlice::new(&together)]), Some(answer.into_bytes()));
    }

    #[test]
    fn answers_of_ours_are_left_alone() {
        let error = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 4\r\n\r\n\r\n\r\n";
        for bytes in [OURS, error, b"", b"\r\n\r\n", b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"] {
            assert_eq!(with_body(&[IoSlice::new(bytes)]), None);
        }
    }
}
