//! What the spec names and the cluster has: Secrets, the policy that was last good, the kinds of Prometheus' operator.
//!
//! The operator may GET Secrets and not watch them, so they are read at each pass. A call that fails ends the pass; a
//! Secret that is not there, or cannot be used, is told and keeps the StatefulSet as it is.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Client, ResourceExt,
    api::{Api, ApiResource, GroupVersionKind},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{build, error::Error};
use crate::kubernetes::{
    api::{SelectorSet, common::SecretKeyReference},
    controller::apply::{ApplyError, call},
};

/// Length of a tracking key, in bytes.
const TRACKING_KEY_BYTES: usize = 32;
/// How long it is believed which kinds there are.
const KINDS_FRESH: Duration = Duration::from_secs(300);

/// What was found.
#[derive(Debug, Default)]
pub struct Dereferenced {
    /// Raw key of the tracking hash.
    pub tracking_key: Option<Zeroizing<Vec<u8>>>,
    /// Token of the selectors' guarded routes.
    pub admin_token: Option<Zeroizing<String>>,
    /// What is missing or cannot be used.
    pub missing: Vec<MissingReference>,
    /// Policy document of the set's ConfigMap.
    pub last_policy: Option<String>,
    /// Kinds of Prometheus' operator that the cluster has.
    pub monitors: Monitors,
}

/// A reference that leads to nothing that can be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingReference {
    /// Field of the spec.
    pub field: &'static str,
    /// Kind and name of the object.
    pub object: String,
    /// What is wrong with it, for a person.
    pub message: String,
}

/// Kinds of `monitoring.coreos.com/v1` that the cluster has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Monitors {
    /// PodMonitor.
    pub pod: Option<ApiResource>,
    /// ServiceMonitor.
    pub service: Option<ApiResource>,
}

/// The kinds that were found, believed for [`KINDS_FRESH`].
#[derive(Debug, Default)]
pub struct MonitorKinds(Mutex<Option<(Instant, Monitors)>>);

impl MonitorKinds {
    async fn get(&self, client: &Client) -> Result<Monitors, Error> {
        if let Some((at, known)) = &*self.0.lock()
            && at.elapsed() < KINDS_FRESH
        {
            return Ok(known.clone());
        }
        let pod = kind(client, "PodMonitor").await?;
        let service = match &pod {
            Some(_) => kind(client, "ServiceMonitor").await?,
            None => None,
        };
        let found = Monitors { pod, service };
        *self.0.lock() = Some((Instant::now(), found.clone()));
        Ok(found)
    }
}

async fn kind(client: &Client, kind: &str) -> Result<Option<ApiResource>, Error> {
    let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", kind);
    match call("discover", &kind.kind, kube::discovery::pinned_kind(client, &kind)).await {
        Ok((resource, _)) => Ok(Some(resource)),
        // No such group. A missing path is answered in plain text, without a reason.
        Err(error) if error.code() == Some(404) => Ok(None),
        // No such kind in it.
        Err(ApplyError::Api { source, .. }) if matches!(&*source, kube::Error::Discovery(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads what `set` names.
///
/// # Errors
/// The apiserver cannot be asked.
pub async fn dereference(client: &Client, kinds: &MonitorKinds, set: &SelectorSet) -> Result<Dereferenced, Error> {
    let namespace = set.namespace().ok_or(Error::Incomplete("namespace"))?;
    let mut found = Dereferenced::default();
    if let Some(tracking) = &set.spec.tracking_hash {
        let field = "trackingHash.keySecretRef";
        match secret(client, &namespace, field, &tracking.key_secret_ref)
            .await?
            .and_then(|key| tracking_key(key, field))
        {
            Ok(key) => found.tracking_key = Some(key),
            Err(missing) => found.missing.push(missing),
        }
    }
    if let Some(reference) = &set.spec.admin_token_secret_ref {
        let field = "adminTokenSecretRef";
        match secret(client, &namespace, field, reference).await?.and_then(|token| admin_token(token, field)) {
            Ok(token) => found.admin_token = Some(token),
            Err(missing) => found.missing.push(missing),
        }
    }
    if set.spec.mode == crate::kubernetes::api::selector_set::Mode::External {
        return Ok(found);
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let name = build::policy_name(&set.name_any());
    let live = call("get", format!("ConfigMap {name}"), config_maps.get_opt(&name)).await?;
    let ours = |live: &ConfigMap| {
        let uid = set.uid();
        live.owner_references().iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == uid.as_ref())
    };
    found.last_policy = live.filter(ours).and_then(|live| live.data?.remove(build::POLICY_KEY));
    found.monitors = kinds.get(client).await?;
    Ok(found)
}

/// The bytes of a key of a Secret, with the object's name.
struct Found {
    object: String,
    bytes: Zeroizing<Vec<u8>>,
}

impl Found {
    fn unusable(&self, field: &'static str, message: String) -> MissingReference {
        MissingReference { field, object: self.object.clone(), message }
    }
}

async fn secret(
    client: &Client,
    namespace: &str,
    field: &'static str,
    reference: &SecretKeyReference,
) -> Result<Result<Found, MissingReference>, Error> {
    let SecretKeyReference { name, key } = reference;
    let object = format!("Secret {name}");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let live = call("get", &object, secrets.get_opt(name)).await?;
    let missing = |message: String| Err(MissingReference { field, object: object.clone(), message });
    let Some(live) = live else { return Ok(missing("it does not exist".to_owned())) };
    let Some(bytes) = live.data.and_then(|mut data| data.remove(key)) else {
        return Ok(missing(format!("it has no key {key}")));
    };
    Ok(Ok(Found { object, bytes: Zeroizing::new(bytes.0) }))
}

fn tracking_key(found: Found, field: &'static str) -> Result<Zeroizing<Vec<u8>>, MissingReference> {
    match found.bytes.len() {
        TRACKING_KEY_BYTES => Ok(found.bytes),
        length => Err(found.unusable(field, format!("its key has {length} bytes; exactly 32 raw bytes are needed"))),
    }
}

/// As the selector reads its token file: the first line, printable and without blanks.
fn admin_token(found: Found, field: &'static str) -> Result<Zeroizing<String>, MissingReference> {
    let text = std::str::from_utf8(&found.bytes).unwrap_or_default();
    let token = text.lines().next().unwrap_or_default().trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = "its first line must be a token of printable ASCII without blanks".to_owned();
        return Err(found.unusable(field, message));
    }
    Ok(Zeroizing::new(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8]) -> Found {
        Found { object: "Secret s".to_owned(), bytes: Zeroizing::new(bytes.to_vec()) }
    }

    #[test]
    fn a_tracking_key_has_32_raw_bytes() {
        assert_eq!(tracking_key(found(&[0; 32]), "f").unwrap().len(), 32);
        for length in [0, 31, 33, 64] {
            let missing = tracking_key(found(&vec![7; length]), "f").unwrap_err();
            assert_eq!(missing.message, format!("its key has {length} bytes; exactly 32 raw bytes are needed"));
            assert_eq!(missing.object, "Secret s");
        }
    }

    #[test]
    fn a_token_is_what_a_header_can_carry() {
        assert_eq!(**admin_token(found(b"abc\nignored"), "f").as_ref().unwrap(), "abc");
        for bad in [&b""[..], b"\nabc", b"a b", b"\xff", "sch\u{f6}n".as_bytes()] {
            assert!(admin_token(found(bad), "f").is_err(), "{bad:?}");
        }
    }
}
