//! Settings of the HTTP server.

use std::{fmt, time::Duration};

use zeroize::Zeroizing;

/// Bearer token that guards the mutating catalog and peer routes. Never printed, wiped on drop.
#[derive(Clone)]
pub struct AdminToken(Zeroizing<String>);

impl AdminToken {
    /// A token; surrounding white space (a file's last newline) does not count. `None` when nothing is left.
    pub fn new(text: &str) -> Option<Self> {
        let token = text.trim();
        (!token.is_empty()).then(|| Self(Zeroizing::new(token.to_owned())))
    }

    /// Whether `offered` is the token. The time taken depends on the lengths alone.
    pub fn matches(&self, offered: &[u8]) -> bool {
        let token = self.0.as_bytes();
        let mut difference = u8::from(token.len() != offered.len());
        for (index, byte) in offered.iter().enumerate() {
            difference |= byte ^ token[index % token.len()];
        }
        std::hint::black_box(difference) == 0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken(redacted)")
    }
}

/// Whose shapes the routes have that selector and indexer both know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Face {
    /// The selection service's.
    #[default]
    Selector,
    /// The standalone indexer's: `/workers`, `/health`, `/metrics`, and its peer routes.
    Indexer,
}

/// Settings of [`super::serve`]. `Default` is what an unconfigured selector runs.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Guards the mutating catalog and peer routes; `None` = open to all.
    pub admin_token: Option<AdminToken>,
    /// Whose shapes some routes have.
    pub face: Face,
    /// Whether listeners can be paused over HTTP.
    pub pause_routes: bool,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// Largest `PUT /catalog/{owner}` body after decompression, in bytes.
    pub max_catalog_bytes: usize,
    /// Longest time for a request's head, from its first byte.
    pub header_timeout: Duration,
    /// Longest time for a request's body, from its head.
    pub body_timeout: Duration,
    /// Longest time a client may take nothing of an answer.
    pub write_timeout: Duration,
    /// Time a client may take for a long answer (a dump, a replica's state) beside what its length allows at the rate of
    /// [`Self::slowest_reader`].
    pub reader_grace: Duration,
    /// Slowest a client may read such an answer, in bytes a second.
    pub slowest_reader: u64,
    /// Longest pause between two requests of a connection.
    pub idle_timeout: Duration,
    /// Connections served at once; one more is answered 503 and closed.
    pub max_connections: usize,
    /// Time in which requests are still accepted after the word to stop, while `/readyz` fails already.
    pub shutdown_delay: Duration,
    /// Longest time for requests in flight after that.
    pub drain_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            admin_token: None,
            face: Face::Selector,
            pause_routes: false,
            max_body_bytes: 8 << 20,
            max_catalog_bytes: 256 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            reader_grace: Duration::from_secs(20),
            slowest_reader: 256 << 10,
            idle_timeout: Duration::from_secs(120),
            max_connections: 16_384,
            shutdown_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_trimmed_compared_whole_and_never_printed() {
        let token = AdminToken::new(" s3cret\n").expect("not empty");
        assert!(token.matches(b"s3cret"));
        for wrong in ["", "s3cre", "s3cret2", "s3creT", "s3crets3cret"] {
            assert!(!token.matches(wrong.as_bytes()), "{wrong:?}");
        }
        assert!(!format!("{token:?}").contains("s3cret"));
        assert!(AdminToken::new(" \n").is_none());
    }
}
