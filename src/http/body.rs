//! Reading a request's body: media type, size and time (spec http 2.2), in this order.

use std::time::Duration;

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderMap, header},
};
use http_body_util::BodyExt;

use super::error::ApiError;

/// Room made for a body before any of it has come.
const FIRST_RESERVE: usize = 256 << 10;
/// How much of a body that is too long is read and thrown away, so that the client gets its answer: a connection that
/// is closed on a client that still sends loses it.
const DISCARD_BYTES: usize = 64 << 20;

/// What a route reads at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    /// Bytes.
    pub bytes: usize,
    /// From the head on.
    pub time: Duration,
}

/// Reads a JSON body.
pub(super) async fn json(headers: &HeaderMap, body: Body, limits: BodyLimits) -> Result<Bytes, ApiError> {
    if !is_json(headers) {
        return Err(ApiError::MediaType);
    }
    // A client that waits for permission to send is told at once.
    let waits = headers.contains_key(header::EXPECT);
    if waits && body.size_hint().lower() > limits.bytes as u64 {
        return Err(ApiError::TooLarge);
    }
    match tokio::time::timeout(limits.time, collect(body, limits.bytes)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::BodyTimeout),
    }
}

async fn collect(mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let Some(first) = next_piece(&mut body).await? else { return Ok(Bytes::new()) };
    if first.len() > limit || announced > limit {
        discard(body).await;
        return Err(ApiError::TooLarge);
    }
    // The common case: the whole body came with the head, and is not copied.
    if body.is_end_stream() {
        return Ok(first);
    }
    let Some(second) = next_piece(&mut body).await? else { return Ok(first) };
    let mut whole = Vec::with_capacity(announced.min(FIRST_RESERVE).max(first.len() + second.len()));
    whole.extend_from_slice(&first);
    let mut piece = Some(second);
    while let Some(bytes) = piece {
        if bytes.len() > limit - whole.len() {
            discard(body).await;
            return Err(ApiError::TooLarge);
        }
        whole.extend_from_slice(&bytes);
        piece = next_piece(&mut body).await?;
    }
    Ok(Bytes::from(whole))
}

async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::BrokenBody(error.to_string()))?;
        // Trailers are of no interest.
        if let Ok(bytes) = frame.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

async fn discard(mut body: Body) {
    let mut read = 0;
    while read < DISCARD_BYTES
        && let Ok(Some(piece)) = next_piece(&mut body).await
    {
        read += piece.len();
    }
}

/// Whether the media type is `application/json` or `application/*+json`, in any case, with any parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return false };
    if value == "application/json" {
        return true;
    }
    let Ok(text) = value.to_str() else { return false };
    let media_type = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.strip_prefix("application/") {
        Some(subtype) => subtype == "json" || (subtype.len() > 5 && subtype.ends_with("+json")),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types() {
        let accepted = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().expect("header"));
            is_json(&headers)
        };
        for value in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=latin1",
            "application/vnd.api+json",
        ] {
            assert!(accepted(value), "{value}");
        }
        for value in ["text/json", "application/jsonx", "text/plain", "application/+json", "", "json", "application"] {
            assert!(!accepted(value), "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }

    fn pieces(sizes: &[usize]) -> Body {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; *size]))).collect();
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test]
    async fn limit_counts_whatever_the_pieces() {
        for sizes in [&[10][..], &[5, 5], &[1; 10], &[0, 10, 0], &[]] {
            let length: usize = sizes.iter().sum();
            assert_eq!(collect(pieces(sizes), 10).await.expect("fits").len(), length, "{sizes:?}");
        }
        for sizes in [&[11][..], &[5, 6], &[1; 11], &[10, 0, 1]] {
            assert!(matches!(collect(pieces(sizes), 10).await, Err(ApiError::TooLarge)), "{sizes:?}");
        }
    }
}
