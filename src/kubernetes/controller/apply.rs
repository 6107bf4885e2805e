//! Writing objects that a SelectorSet owns, by server-side apply, and deleting those it no longer wants.
//!
//! | file | owns |
//! |---|---|
//! | `projection` | what of a live object a desired one speaks about |
//! | `step` | what is to be done with one object, as a pure function |
//!
//! Invariants: an object that the SelectorSet does not control is never written and never deleted. Nothing is written
//! without a difference: after each write the returned object, seen through the desired one, is remembered, so defaults
//! and normalised values never count as one, and what others change in fields that are ours is put back, at most once
//! in `step::CORRECTION_PAUSE`. An annotation carries the hash of what was applied, so that a restarted operator that
//! finds its own work writes nothing. What the apiserver refused is not sent again until it or the live object
//! changes, or `step::REFUSAL_PAUSE` has passed. Objects are never deleted in order to be made again.

#[cfg(test)]
pub mod mock;
mod projection;
mod step;

use std::{collections::HashMap, fmt, future::Future, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Client, Resource,
    api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use self::step::{Remembered, Step};
use crate::kubernetes::api::constants::{APPLIED_HASH_ANNOTATION, FIELD_MANAGER};

/// Longest wait for one answer of the apiserver, its client's retries included.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a call to the apiserver brought nothing. It is worth another attempt.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// No answer in [`CALL_TIMEOUT`].
    #[error("no answer to {verb} {object} in {} s", CALL_TIMEOUT.as_secs())]
    Timeout {
        /// What was asked for.
        verb: &'static str,
        /// Kind and name.
        object: String,
    },
    /// The apiserver failed, or cannot be reached.
    #[error("cannot {verb} {object}")]
    Api {
        /// What was asked for.
        verb: &'static str,
        /// Kind and name.
        object: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ApplyError {
    /// Status code of the apiserver's answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout { .. } => None,
        }
    }

    /// The object is gone, or another than was thought.
    pub fn is_overtaken(&self) -> bool {
        matches!(self.code(), Some(404 | 409))
    }

    /// A stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "timeout",
            Self::Api { source, .. } => match &**source {
                kube::Error::Api(status) if status.is_forbidden() => "forbidden",
                kube::Error::Api(status) if status.is_conflict() => "conflict",
                kube::Error::Api(_) => "apiserver",
                _ => "transport",
            },
        }
    }
}

/// Waits for one call, within [`CALL_TIMEOUT`].
///
/// # Errors
/// No answer in time, or one that is an error.
pub async fn call<T>(
    verb: &'static str,
    object: impl fmt::Display,
    work: impl Future<Output = kube::Result<T>>,
) -> Result<T, ApplyError> {
    match timeout(CALL_TIMEOUT, work).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ApplyError::Api { verb, object: object.to_string(), source: Box::new(source) }),
        Err(_) => Err(ApplyError::Timeout { verb, object: object.to_string() }),
    }
}

/// An object as it should be.
#[derive(Clone, Debug)]
pub struct Desired {
    resource: ApiResource,
    name: String,
    value: Value,
    hash: String,
}

impl Desired {
    /// A typed object; it has a name.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn of<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> serde_json::Result<Self> {
        Ok(Self::new(ApiResource::erase::<K>(&()), serde_json::to_value(object)?))
    }

    /// An object of a kind that is known at run time alone. `value` has apiVersion, kind and a name.
    pub fn new(resource: ApiResource, mut value: Value) -> Self {
        let hash = step::hash(&value);
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        value["metadata"]["annotations"][APPLIED_HASH_ANNOTATION] = Value::String(hash.clone());
        Self { resource, name, value, hash }
    }

    /// Kind and name, for a person.
    pub fn label(&self) -> String {
        label(&self.resource, &self.name)
    }

    /// The kind.
    pub fn kind(&self) -> &str {
        &self.resource.kind
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole object.
    pub fn value(&self) -> &Value {
        &self.value
    }
}

fn label(resource: &ApiResource, name: &str) -> String {
    format!("{} {name}", resource.kind)
}

/// What became of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is as it should be; the live object.
    Unchanged(Value),
    /// It was written; the object as the apiserver returned it.
    Written(Value),
    /// It belongs to somebody else, whom the text names.
    Conflict(String),
    /// The apiserver refuses it, in these words.
    Refused(String),
    /// It is being deleted, or others change it all the time: look again then.
    Later(Duration),
}

/// Writes for one kind of owner, and remembers what it wrote.
#[derive(Debug, Default)]
pub struct Applier {
    remembered: Mutex<HashMap<Key, Remembered>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    namespace: String,
    owner: String,
    kind: String,
    name: String,
}

impl Key {
    fn new(namespace: &str, owner: &OwnerReference, resource: &ApiResource, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            owner: owner.name.clone(),
            kind: resource.kind.clone(),
            name: name.to_owned(),
        }
    }
}

impl Applier {
    /// Makes `desired` so, in `namespace`, where `owner` controls it or it does not exist. `desired` names the owner in its
    /// ownerReferences.
    ///
    /// # Errors
    /// The apiserver cannot be asked; what it refuses is an [`Outcome`].
    pub async fn apply(
        &self,
        client: &Client,
        namespace: &str,
        owner: &OwnerReference,
        desired: &Desired,
    ) -> Result<Outcome, ApplyError> {
        let key = Key::new(namespace, owner, &desired.resource, &desired.name);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &desired.resource);
        let live = call("get", desired.label(), api.get_opt(&desired.name)).await?.map(plain);
        let remembered = self.remembered.lock().get(&key).cloned();
        let now = Instant::now();
        let live = match step::decide(&desired.value, &desired.hash, live.as_ref(), remembered.as_ref(), owner, now) {
            Step::Write => live,
            Step::Keep => {
                let live = live.unwrap_or_default();
                if remembered.is_none() {
                    self.remember(key, desired, &live, None);
                }
                return Ok(Outcome::Unchanged(live));
            }
            Step::Conflict(owner) => return Ok(Outcome::Conflict(owner)),
            Step::Refused(words) => return Ok(Outcome::Refused(words)),
            Step::Later(pause) => return Ok(Outcome::Later(pause)),
        };
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&desired.value);
        match call("apply", desired.label(), api.patch(&desired.name, &parameters, &patch)).await {
            Ok(written) => {
                let written = plain(written);
                self.remember(key, desired, &written, Some(now));
                Ok(Outcome::Written(written))
            }
            Err(error) => match refusal(&error) {
                Some(words) => {
                    let resource_version = live.as_ref().and_then(step::resource_version);
                    let refused = Remembered::Refused { hash: desired.hash.clone(), resource_version, words, at: now };
                    let Remembered::Refused { words, .. } = &refused else { return Err(error) };
                    let words = words.clone();
                    self.remembered.lock().insert(key, refused);
                    Ok(Outcome::Refused(words))
                }
                None => Err(error),
            },
        }
    }

    /// Deletes an object that is not wanted any more, if `owner` controls it. Whether there was one.
    ///
    /// # Errors
    /// The apiserver cannot be asked, or refuses.
    pub async fn remove(
        &self,
        client: &Client,
        namespace: &str,
        owner: &OwnerReference,
        resource: &ApiResource,
        name: &str,
    ) -> Result<bool, ApplyError> {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
        self.remembered.lock().remove(&Key::new(namespace, owner, resource, name));
        let Some(live) = call("get", label(resource, name), api.get_opt(name)).await? else { return Ok(false) };
        let controlled = live
            .metadata
            .owner_references
            .iter()
            .flatten()
            .any(|reference| reference.uid == owner.uid && reference.controller == Some(true));
        if !controlled || live.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let same = Preconditions { uid: live.metadata.uid, resource_version: None };
        let parameters = DeleteParams::background().preconditions(same);
        match call("delete", label(resource, name), api.delete(name, &parameters)).await {
            Ok(_) => Ok(true),
            // Gone, or another of its name.
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Forgets what was written for an owner that is gone.
    pub fn forget(&self, namespace: &str, owner: &str) {
        self.remembered.lock().retain(|key, _| key.namespace != namespace || key.owner != owner);
    }

    fn remember(&self, key: Key, desired: &Desired, live: &Value, written: Option<Instant>) {
        let projection = step::hash(&projection::project(live, &desired.value));
        let applied = Remembered::Applied { hash: desired.hash.clone(), projection, written };
        self.remembered.lock().insert(key, applied);
    }
}

/// A live object as JSON, without the book-keeping of field managers.
fn plain(mut object: DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).unwrap_or_default()
}

/// The apiserver's words, where what was sent is the reason: another attempt would end in the same way.
fn refusal(error: &ApplyError) -> Option<String> {
    let ApplyError::Api { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    // 403 is also what admission says; 404, that the namespace is gone.
    matches!(status.code, 400 | 403 | 404 | 409 | 413 | 415 | 422).then(|| status.message.clone())
}

#[cfg(test)]
mod tests;
