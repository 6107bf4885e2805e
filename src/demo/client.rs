//! A client of an engine: one streamed completion.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::DemoError;

/// Longest time for one completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(50);

/// A streamed answer so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Streamed {
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Prompt tokens that the engine had cached; known at the end.
    pub cached_tokens: Option<u64>,
    /// The end mark came.
    pub done: bool,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    choices: Vec<ChunkChoice>,
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct ChunkChoice {
    #[serde(default)]
    token_ids: Vec<u32>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens_details: Details,
}

#[derive(Debug, Deserialize)]
struct Details {
    cached_tokens: u64,
}

/// Asks the engine at `url` to complete `prompt` with `max_tokens` tokens; `on_first` is called when the first comes.
///
/// # Errors
/// The engine did not answer, or its stream broke off.
pub async fn complete(
    client: &reqwest::Client,
    url: &str,
    prompt: &[u32],
    max_tokens: usize,
    on_first: impl FnOnce(),
) -> Result<Streamed, DemoError> {
    let body = json!({
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
        "return_token_ids": true,
    });
    let exchange = async {
        let request = client.post(format!("{url}/v1/completions")).json(&body);
        let mut answer = request.send().await.map_err(|error| DemoError::http("engine", error))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(DemoError::Answer(format!(
                "engine answered {status}: {}",
                answer.text().await.unwrap_or_default()
            )));
        }
        let (mut streamed, mut buffer, mut on_first) = (Streamed::default(), Vec::new(), Some(on_first));
        while let Some(bytes) = answer.chunk().await.map_err(|error| DemoError::http("engine", error))? {
            buffer.extend_from_slice(&bytes);
            take_events(&mut buffer, &mut streamed)?;
            if !streamed.tokens.is_empty()
                && let Some(on_first) = on_first.take()
            {
                on_first();
            }
        }
        if streamed.done { Ok(streamed) } else { Err(DemoError::Answer("engine broke the stream off".into())) }
    };
    timeout(COMPLETION_TIMEOUT, exchange).await.unwrap_or(Err(DemoError::Answer("engine took too long".into())))
}

/// Reads the complete events at the start of `buffer` into `streamed`.
fn take_events(buffer: &mut Vec<u8>, streamed: &mut Streamed) -> Result<(), DemoError> {
    let mut read = 0;
    while let Some(length) = buffer[read..].windows(2).position(|pair| pair == b"\n\n") {
        let event = &buffer[read..read + length];
        read += length + 2;
        let Some(data) = event.strip_prefix(b"data: ") else { continue };
        if data == b"[DONE]" {
            streamed.done = true;
            continue;
        }
        let chunk: Chunk = serde_json::from_slice(data)
            .map_err(|error| DemoError::Answer(format!("engine sent an event that is no chunk: {error}")))?;
        streamed.tokens.extend(chunk.choices.into_iter().flat_map(|choice| choice.token_ids));
        if let Some(usage) = chunk.usage {
            streamed.cached_tokens = Some(usage.prompt_tokens_details.cached_tokens);
        }
    }
    buffer.drain(..read);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_the_stream_is_cut() {
        let text = "data: {\"choices\":[{\"token_ids\":[7]}]}\n\ndata: {\"choices\":[{\"token_ids\":[8]}]}\n\n\
                    data: {\"choices\":[],\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":48}}}\n\ndata: [DONE]\n\n";
        for cut in 0..text.len() {
            let (mut buffer, mut streamed) = (Vec::new(), Streamed::default());
            for part in [&text[..cut], &text[cut..]] {
                buffer.extend_from_slice(part.as_bytes());
                take_events(&mut buffer, &mut streamed).unwrap();
            }
            assert_eq!(streamed, Streamed { tokens: vec![7, 8], cached_tokens: Some(48), done: true });
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        let mut buffer = b"data: {\"error\":1}\n\n".to_vec();
        assert!(take_events(&mut buffer, &mut Streamed::default()).is_err());
    }
}
