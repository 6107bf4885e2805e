//! One kind of object, listed and then watched for as long as the process lives.
//!
//! Not `kube::runtime::watcher`: that one asks for a watch again, without a pause, whenever the apiserver ends it; never
//! lists again where 410 Gone is the answer to the request itself; and waits for ever for a list that hangs. Here every
//! call has a timeout, every end of a watch that came early and every failure is followed by a pause that grows, and a
//! watch that fails again and again is begun anew from a list.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures_util::StreamExt;
use kube::{
    Api, Error,
    api::{ListParams, Resource, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    counters::SourceCounters,
    objects::ObjectKey,
    world::{Kind, Object},
};
use crate::events::transport::backoff::Backoff;

/// Longest wait for a page of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a watch to begin.
const WATCH_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which the apiserver is asked to end a watch, in seconds; kube refuses more than 294.
const WATCH_SECONDS: u32 = 290;
/// Longest silence of a watch: it should have ended by then.
const WATCH_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// A watch that stood for this long was a good one.
const GOOD_WATCH: Duration = Duration::from_secs(30);
/// Watches that may fail one after the other before the list is read again.
const FAILURES_BEFORE_LIST: u32 = 5;
/// Pauses between requests after failures: at most some seven a minute.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// What the world is told.
#[derive(Debug)]
pub(super) enum Input {
    /// A complete list.
    Reset(Kind, Vec<Object>),
    /// An object is new or changed.
    Apply(Object),
    /// An object is gone.
    Delete(Kind, ObjectKey),
    /// This kind cannot be read.
    GiveUp(Kind),
}

/// What an object of the apiserver is to the world.
pub(super) enum View {
    /// An object.
    Object(Object),
    /// Nothing of interest, under this name.
    Nothing(ObjectKey),
}

/// What is followed.
pub(super) struct Followed {
    pub kind: Kind,
    /// All terms in one selector.
    pub labels: Option<String>,
    /// Objects a page of a list.
    pub page: u32,
    /// When the first answer is 403, carry on without it.
    pub is_optional: bool,
}

/// How a watch ended.
enum End {
    /// The apiserver ended it.
    Closed,
    /// What it was to go on from is not known any more.
    Gone,
    Failed(Failure),
    /// Nobody listens any more.
    Unheard,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error(transparent)]
    Call(#[from] Error),
    #[error("the list has no resource version")]
    NoVersion,
}

impl Failure {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Call(Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::NoVersion => "decode",
            Self::Call(Error::Api(status)) => match status.code {
                401 | 403 => "forbidden",
                410 => "gone",
                429 => "throttled",
                _ => "server",
            },
            Self::Call(Error::SerdeError(_)) => "decode",
            Self::Call(_) => "transport",
        }
    }
}

/// Follows `api` until nobody listens to `to` any more. `view` is called for each object, and drops what is not needed.
pub(super) async fn follow<K>(
    api: Api<K>,
    what: Followed,
    view: impl Fn(K) -> Option<View>,
    to: mpsc::Sender<Input>,
    counters: Arc<SourceCounters>,
) where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let follower = Follower { api, what, view, to, counters };
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
    let mut was_listed = false;
    loop {
        match follower.list().await {
            Ok((objects, version)) => {
                follower.counters.count_list(follower.what.kind.index());
                was_listed = true;
                if follower.to.send(Input::Reset(follower.what.kind, objects)).await.is_err() {
                    return;
                }
                if !follower.watch(version, &mut backoff).await {
                    return;
                }
            }
            Err(failure) => {
                follower.tell("list", &failure);
                if follower.what.is_optional && !was_listed && failure.code() == Some(403) {
                    tracing::warn!(kind = follower.what.kind.as_str(), "no right to read these: carrying on without");
                    // Nobody listening is the end as well.
                    drop(follower.to.send(Input::GiveUp(follower.what.kind)).await);
                    return;
                }
            }
        }
        sleep(backoff.next_pause()).await;
    }
}

struct Follower<K, F> {
    api: Api<K>,
    what: Followed,
    view: F,
    to: mpsc::Sender<Input>,
    counters: Arc<SourceCounters>,
}

impl<K, F> Follower<K, F>
where
    K: Resource + Clone + DeserializeOwned + Debug,
    F: Fn(K) -> Option<View>,
{
    /// Everything, page by page, and the version from which to watch.
    async fn list(&self) -> Result<(Vec<Object>, String), Failure> {
        let mut params = ListParams { label_selector: self.what.labels.clone(), ..ListParams::default() };
        params.limit = Some(self.what.page);
        let mut objects = Vec::new();
        loop {
            let page = within(LIST_TIMEOUT, self.api.list(&params)).await?;
            for item in page.items {
                if let Some(View::Object(object)) = (self.view)(item) {
                    objects.push(object);
                }
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                return Ok((objects, version.ok_or(Failure::NoVersion)?));
            }
        }
    }

    /// Watches from `version` until the list is to be read again; `false` when nobody listens any more.
    async fn watch(&self, mut version: String, backoff: &mut Backoff) -> bool {
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let from = version.clone();
            self.counters.count_watch(self.what.kind.index());
            let end = self.watch_once(&mut version).await;
            let stood = begun.elapsed();
            if stood >= GOOD_WATCH {
                backoff.reset();
            }
            if version != from {
                failures = 0;
            }
            match end {
                End::Unheard => return false,
                End::Closed if stood >= GOOD_WATCH => continue,
                End::Closed => {}
                End::Gone => {
                    tracing::info!(kind = self.what.kind.as_str(), "the watch is too far behind: listing again");
                    self.counters.count_error(self.what.kind.index(), "gone");
                    return true;
                }
                End::Failed(failure) => {
                    self.tell("watch", &failure);
                    failures += 1;
                    if failures >= FAILURES_BEFORE_LIST {
                        return true;
                    }
                }
            }
            sleep(backoff.next_pause()).await;
        }
    }

    async fn watch_once(&self, version: &mut String) -> End {
        let params = WatchParams {
            label_selector: self.what.labels.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            ..WatchParams::default()
        };
        let events = match within(WATCH_START_TIMEOUT, self.api.watch(&params, version)).await {
            Ok(events) => events,
            Err(failure) if failure.code() == Some(410) => return End::Gone,
            Err(failure) => return End::Failed(failure),
        };
        let mut events = std::pin::pin!(events);
        loop {
            let event = match timeout(WATCH_SILENCE, events.next()).await {
                Err(_) => return End::Failed(Failure::Timeout(WATCH_SILENCE)),
                Ok(None) => return End::Closed,
                Ok(Some(Ok(WatchEvent::Error(status)))) => Err(Error::Api(status)),
                Ok(Some(event)) => event,
            };
            let (object, is_gone) = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
                Ok(WatchEvent::Deleted(object)) => (object, true),
                Ok(WatchEvent::Bookmark(bookmark)) => {
                    *version = bookmark.metadata.resource_version;
                    continue;
                }
                Ok(WatchEvent::Error(status)) => return End::Failed(Error::Api(status).into()),
                Err(Error::Api(status)) if status.code == 410 => return End::Gone,
                Err(error) => return End::Failed(error.into()),
            };
            let at = object.meta().resource_version.clone().unwrap_or_default();
            let input = match (self.view)(object) {
                Some(View::Object(object)) if !is_gone => Some(Input::Apply(object)),
                Some(View::Object(object)) => Some(Input::Delete(self.what.kind, object.key())),
                Some(View::Nothing(key)) => Some(Input::Delete(self.what.kind, key)),
                None => None,
            };
            if let Some(input) = input
                && self.to.send(input).await.is_err()
            {
                return End::Unheard;
            }
            if !at.is_empty() {
                *version = at;
            }
        }
    }

    fn tell(&self, verb: &str, failure: &Failure) {
        let reason = failure.reason();
        self.counters.count_error(self.what.kind.index(), reason);
        tracing::warn!(kind = self.what.kind.as_str(), verb, reason, %failure, "the apiserver cannot be read");
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match timeout(limit, call).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(Failure::Timeout(limit)),
    }
}
