//! Wiring selectors to each other: each one's publisher is registered as a peer of every other.
//!
//! One task a selector ([`run`]) asks it once a second for its replica sync and peers, shares what it told on the
//! [`Board`], and registers and removes what the [`Plan`] for it says. So a selector that restarted, lost a peer or
//! publishes elsewhere is wired again at the next look, and one that is slow or dead delays nobody.
//!
//! Invariants: an endpoint is registered only after its selector has answered; nothing is removed that this program did
//! not want there itself, in this run or, by the state file, in a former one, but with `prune`; a removal never follows
//! from a selector's silence.

mod driver;
mod endpoint;
mod look;
mod plan;
mod wire;

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

pub use driver::run;
pub use endpoint::{DEFAULT_PUBLISHER_PORT, check_publisher};
pub use look::{Look, ReplicaSync};
pub use plan::{Facts, Member, Plan, Strangers, plan};
pub use wire::{Outcome, Wire, WireOptions};

/// What every selector told last, shared by their tasks.
#[derive(Debug)]
pub struct Board(watch::Sender<Vec<Member>>);

impl Board {
    /// A board of selectors, by URL, of which nothing is known yet.
    pub fn new(urls: impl IntoIterator<Item = Arc<str>>) -> Arc<Self> {
        let members = urls.into_iter().map(|url| Member { url, facts: None }).collect();
        Arc::new(Self(watch::Sender::new(members)))
    }

    /// Follows the board.
    pub fn subscribe(&self) -> watch::Receiver<Vec<Member>> {
        self.0.subscribe()
    }

    /// What is known now.
    pub fn members(&self) -> Vec<Member> {
        self.0.borrow().clone()
    }

    /// Adds the selector at `url`, of which nothing is known yet, unless it is there.
    pub fn join(&self, url: &str) {
        self.0.send_if_modified(|members| {
            let is_new = !members.iter().any(|m| *m.url == *url);
            if is_new {
                members.push(Member { url: url.into(), facts: None });
            }
            is_new
        });
    }

    /// Takes the selector at `url` off: what others have of it is removed there.
    pub fn leave(&self, url: &str) {
        self.0.send_if_modified(|members| {
            let before = members.len();
            members.retain(|m| *m.url != *url);
            members.len() != before
        });
    }

    /// Writes down what the selector at `url` told; wakes the others when that is news.
    pub fn tell(&self, url: &str, facts: Facts) {
        self.0.send_if_modified(|members| match members.iter_mut().find(|m| *m.url == *url) {
            Some(member) if member.facts.as_ref() != Some(&facts) => {
                member.facts = Some(facts);
                true
            }
            _ => false,
        });
    }
}

/// How the peers of a selector stand.
#[derive(Clone, Debug, Default)]
pub struct WiringStatus {
    /// What it told last; none before its first answer.
    pub look: Option<Look>,
    /// Where others subscribe to it.
    pub publisher: Option<String>,
    /// What is wanted of it, and what is there.
    pub plan: Plan,
    /// Why calls about single endpoints failed.
    pub problems: Vec<(String, String)>,
    /// It did not answer the last look.
    pub away: bool,
    /// Why the last look or pass failed; none after one that succeeded.
    pub error: Option<String>,
    /// When everything wanted was last seen to be there.
    pub last_success: Option<Instant>,
    /// Peers registered since the start of this program.
    pub registered: u64,
    /// Peers removed since then.
    pub deregistered: u64,
    /// Looks and passes that failed since then.
    pub failures: u64,
}

/// A word for how the peers of a selector stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WiringState {
    /// Not asked yet.
    Pending,
    /// It does not answer.
    Unreachable,
    /// It takes no part: started without replica sync.
    Disabled,
    /// It takes no part: it has no such routes.
    Unsupported,
    /// Everything wanted is registered.
    Wired,
    /// Something wanted is missing, or something is there that should go.
    Incomplete,
    /// Another selector is said to publish at the same address.
    Clash,
}

impl WiringState {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Unreachable => "unreachable",
            Self::Disabled => "disabled",
            Self::Unsupported => "unsupported",
            Self::Wired => "wired",
            Self::Incomplete => "incomplete",
            Self::Clash => "clash",
        }
    }

    /// Whether nothing is left to do. A selector without replica sync is no failure.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Disabled | Self::Unsupported | Self::Wired)
    }
}

impl WiringStatus {
    /// The word for it.
    pub fn state(&self) -> WiringState {
        if self.away {
            return WiringState::Unreachable;
        }
        let Some(look) = &self.look else { return WiringState::Pending };
        match look.sync {
            ReplicaSync::Disabled => WiringState::Disabled,
            ReplicaSync::Unsupported => WiringState::Unsupported,
            ReplicaSync::Enabled if !self.plan.clashes.is_empty() => WiringState::Clash,
            ReplicaSync::Enabled if self.plan.has_work() => WiringState::Incomplete,
            ReplicaSync::Enabled => WiringState::Wired,
        }
    }
}
