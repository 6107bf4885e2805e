//! A selector is killed while users ask, and started again: what it knows when it is back, and how long that took.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{DemoError, knowledge::Look, routing::Routing, selectors::Selectors};

/// Longest time for one to start again.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time, once it is ready, until it knows what its peers know.
const EQUAL_TIMEOUT: Duration = Duration::from_secs(5);

/// How a selector came back.
#[derive(Clone, Copy, Debug)]
pub struct Drill {
    /// Which one.
    pub selector: usize,
    /// Live bookings of the fleet when it was killed.
    pub bookings: u64,
    /// How long there was no process.
    pub away: Duration,
    /// From the start of its process to `/readyz`.
    pub ready: Duration,
    /// What it knew of what a peer knew, the first time it was asked.
    pub first: Look,
    /// From then on until it knew the same; zero when it did at once.
    pub equal: Option<Duration>,
}

/// Kills `selector`, starts it again after `away`, and compares it with a peer.
///
/// # Errors
/// It does not come back, or a selector does not answer.
pub async fn run(
    selectors: &Selectors,
    routing: &Routing,
    selector: usize,
    away: Duration,
) -> Result<Drill, DemoError> {
    let peer = (selector + 1) % selectors.count();
    let bookings = selectors.live_bookings(selector).await.unwrap_or_default();
    selectors.kill(selector).await?;
    let killed = Instant::now();
    sleep(away).await;
    let away = killed.elapsed();
    selectors.launch(selector)?;
    let started = Instant::now();
    timeout(READY_TIMEOUT, selectors.ready(selector)).await.map_err(|_| DemoError::NotBack)??;
    let ready = started.elapsed();
    // As a balancer does that looks at /readyz.
    routing.is_back(selector);

    let looking = Instant::now();
    let mut before = selectors.knowledge(peer).await?;
    let mut first = None;
    loop {
        let at = looking.elapsed();
        let subject = selectors.knowledge(selector).await?;
        let after = selectors.knowledge(peer).await?;
        let look = Look::at(&before, &subject, &after);
        let at = if first.is_none() { Duration::ZERO } else { at };
        let first = *first.get_or_insert(look);
        if look.is_equal() || at > EQUAL_TIMEOUT {
            let equal = look.is_equal().then_some(at);
            return Ok(Drill { selector, bookings, away, ready, first, equal });
        }
        before = after;
    }
}
