//! When to send PING and when to give a peer up. No clock of its own: every call is told the time.

use std::time::Duration;

use tokio::time::Instant;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// Nothing before that time.
    Wait(Instant),
    /// Send a PING and ask again.
    Ping,
    /// The peer did not answer, or has heard nothing for as long as it allows.
    Dead,
}

/// Liveness of one connection.
#[derive(Debug)]
pub(super) struct Heartbeat {
    interval: Duration,
    timeout: Duration,
    /// Whether the peer understands PING.
    pings: bool,
    last_received: Instant,
    last_ping: Instant,
    /// The first PING after which nothing arrived.
    unanswered_since: Option<Instant>,
}

impl Heartbeat {
    /// For a connection that is up since `now`. A zero `interval`, or a peer without PING, sends none.
    pub(super) fn new(now: Instant, interval: Duration, timeout: Duration, peer_has_ping: bool) -> Self {
        let pings = peer_has_ping && !interval.is_zero();
        Self { interval, timeout, pings, last_received: now, last_ping: now, unanswered_since: None }
    }

    /// Any bytes count as a sign of life.
    pub(super) fn received(&mut self, now: Instant) {
        self.last_received = now;
        self.unanswered_since = None;
    }

    /// When bytes last came, or the connection was made.
    pub(super) fn last_received(&self) -> Instant {
        self.last_received
    }

    /// What is due at `now`; `peer_ttl` is the silence the peer asked us to tolerate at most.
    pub(super) fn beat(&mut self, now: Instant, peer_ttl: Option<Duration>) -> Beat {
        let ttl_end = peer_ttl.map(|ttl| self.last_received + ttl);
        let answer_end = self.unanswered_since.map(|since| since + self.timeout);
        if [ttl_end, answer_end].into_iter().flatten().any(|end| now >= end) {
            return Beat::Dead;
        }
        let next_ping = self.pings.then(|| self.last_ping + self.interval);
        if next_ping.is_some_and(|next| now >= next) {
            self.last_ping = now;
            self.unanswered_since.get_or_insert(now);
            return Beat::Ping;
        }
        // Without anything to watch, look again once in a while: a TTL may have arrived.
        let idle = now + Duration::from_secs(1).max(self.interval);
        Beat::Wait([ttl_end, answer_end, next_ping].into_iter().flatten().min().unwrap_or(idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pings_every_interval_and_gives_up_after_the_timeout_without_an_answer() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start, 5 * SECOND, 15 * SECOND, true);
        assert_eq!(heartbeat.beat(start, None), Beat::Wait(start + 5 * SECOND));
        assert_eq!(heartbeat.beat(start + 5 * SECOND, None), Beat::Ping);
        assert_eq!(heartbeat.beat(start + 10 * SECOND, None), Beat::Ping);
        assert_eq!(heartbeat.beat(start + 15 * SECOND, None), Beat::Ping);
        assert_eq!(heartbeat.beat(start + 19 * SECOND, None), Beat::Wait(start + 20 * SECOND));
        assert_eq!(heartbeat.beat(start + 20 * SECOND, None), Beat::Dead);
    }

    #[test]
    fn any_byte_answers() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start, 5 * SECOND, 15 * SECOND, true);
        assert_eq!(heartbeat.beat(start + 5 * SECOND, None), Beat::Ping);
        heartbeat.received(start + 6 * SECOND);
        assert_eq!(heartbeat.beat(start + 21 * SECOND, None), Beat::Ping);
        assert_eq!(heartbeat.beat(start + 30 * SECOND, None), Beat::Ping);
        assert_eq!(heartbeat.beat(start + 36 * SECOND, None), Beat::Dead);
    }

    #[test]
    fn a_peer_without_ping_is_never_pinged_but_its_ttl_holds() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start, 5 * SECOND, 15 * SECOND, false);
        assert_eq!(heartbeat.beat(start + 3600 * SECOND, None), Beat::Wait(start + 3605 * SECOND));
        heartbeat.received(start + 3600 * SECOND);
        assert_eq!(heartbeat.beat(start + 3601 * SECOND, Some(3 * SECOND)), Beat::Wait(start + 3603 * SECOND));
        assert_eq!(heartbeat.beat(start + 3603 * SECOND, Some(3 * SECOND)), Beat::Dead);
    }
}
