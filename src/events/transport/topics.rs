//! The prefixes one subscriber asked for.

use super::codec::ProtocolError;

/// Most prefixes of one subscriber, and most bytes over all of them.
const MAX_TOPICS: usize = 1024;
const MAX_BYTES: usize = 64 << 10;

/// A set of prefixes.
#[derive(Debug, Default)]
pub(super) struct Topics {
    prefixes: Vec<Box<[u8]>>,
    bytes: usize,
}

impl Topics {
    /// Adds `prefix`; asking twice is asking once.
    pub(super) fn add(&mut self, prefix: &[u8]) -> Result<(), ProtocolError> {
        if self.prefixes.iter().any(|known| **known == *prefix) {
            return Ok(());
        }
        if self.prefixes.len() == MAX_TOPICS || self.bytes + prefix.len() > MAX_BYTES {
            return Err(ProtocolError::Subscriptions);
        }
        self.bytes += prefix.len();
        self.prefixes.push(prefix.into());
        Ok(())
    }

    /// Takes `prefix` out.
    pub(super) fn remove(&mut self, prefix: &[u8]) {
        if let Some(index) = self.prefixes.iter().position(|known| **known == *prefix) {
            self.prefixes.swap_remove(index);
            self.bytes -= prefix.len();
        }
    }

    /// Whether `topic` begins with one of them.
    pub(super) fn matches(&self, topic: &[u8]) -> bool {
        self.prefixes.iter().any(|prefix| topic.starts_with(prefix))
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_select_and_the_empty_one_selects_all() {
        let mut topics = Topics::default();
        assert!(!topics.matches(b""));
        topics.add(b"kv@").unwrap();
        topics.add(b"kv@").unwrap();
        assert!(topics.matches(b"kv@pod") && topics.matches(b"kv@") && !topics.matches(b"kv"));
        topics.remove(b"kv@");
        assert!(topics.is_empty() && !topics.matches(b"kv@pod"));
        topics.add(b"").unwrap();
        assert!(topics.matches(b"") && topics.matches(b"anything"));
    }

    #[test]
    fn number_and_size_are_bounded_and_room_comes_back() {
        let mut topics = Topics::default();
        for index in 0..MAX_TOPICS {
            topics.add(&index.to_be_bytes()).unwrap();
        }
        assert_eq!(topics.add(b"more"), Err(ProtocolError::Subscriptions));
        topics.remove(&0usize.to_be_bytes());
        assert_eq!(topics.add(&vec![0; MAX_BYTES]), Err(ProtocolError::Subscriptions));
        topics.add(b"more").unwrap();
    }
}
