//! What is to be done with one object.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use tokio::time::Instant;

use super::projection::project;
use crate::kubernetes::api::constants::APPLIED_HASH_ANNOTATION;

/// Least time between two writes of the same desired object: who changes our fields all the time is not answered in kind.
pub const CORRECTION_PAUSE: Duration = Duration::from_secs(10);
/// How long a refusal is believed.
pub const REFUSAL_PAUSE: Duration = Duration::from_secs(300);
/// When an object that is being deleted is looked at again.
const GOING_PAUSE: Duration = Duration::from_secs(2);

/// What is known of the last attempt.
#[derive(Clone, Debug)]
pub enum Remembered {
    /// It was applied, or found as it should be.
    Applied {
        /// Of the desired object.
        hash: String,
        /// Of what the live object said about its fields then.
        projection: String,
        /// When it was written, where this process did.
        written: Option<Instant>,
    },
    /// The apiserver refused it.
    Refused {
        /// Of the desired object.
        hash: String,
        /// Of the live object then; none when there was none.
        resource_version: Option<String>,
        /// The apiserver's.
        words: String,
        /// When.
        at: Instant,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is as it should be.
    Keep,
    /// Apply it.
    Write,
    /// It belongs to somebody else.
    Conflict(String),
    /// It would be refused as it was.
    Refused(String),
    /// Not now.
    Later(Duration),
}

/// Decides. `hash` is that of `desired`.
pub fn decide(
    desired: &Value,
    hash: &str,
    live: Option<&Value>,
    remembered: Option<&Remembered>,
    owner: &OwnerReference,
    now: Instant,
) -> Step {
    if let Some(live) = live {
        match held_by(live, owner) {
            Holder::Owner => {}
            Holder::Predecessor => return Step::Later(GOING_PAUSE),
            Holder::Other(who) => return Step::Conflict(who),
        }
        if !live["metadata"]["deletionTimestamp"].is_null() {
            return Step::Later(GOING_PAUSE);
        }
    }
    if let Some(Remembered::Refused { hash: refused, resource_version: version, words, at }) = remembered
        && refused == hash
        && *version == live.and_then(resource_version)
        && now.saturating_duration_since(*at) < REFUSAL_PAUSE
    {
        return Step::Refused(words.clone());
    }
    let Some(live) = live else { return Step::Write };
    match remembered {
        Some(Remembered::Applied { hash: applied, projection, written }) if applied == hash => {
            if *projection == self::hash(&project(live, desired)) {
                return Step::Keep;
            }
            let since = written.map(|at| now.saturating_duration_since(at));
            match since.filter(|since| *since < CORRECTION_PAUSE) {
                Some(since) => Step::Later(CORRECTION_PAUSE - since),
                None => Step::Write,
            }
        }
        Some(Remembered::Applied { .. }) => Step::Write,
        // The annotation says that these very fields were applied; what is left is whether somebody changed them since.
        // Values that the apiserver writes in another way count as changed, which costs one write.
        Some(Remembered::Refused { .. }) | None => {
            let applied = live["metadata"]["annotations"][APPLIED_HASH_ANNOTATION].as_str() == Some(hash);
            if applied && project(live, desired) == *desired { Step::Keep } else { Step::Write }
        }
    }
}

enum Holder {
    Owner,
    /// An owner of the same name that is gone: the garbage collector takes the object.
    Predecessor,
    Other(String),
}

fn held_by(live: &Value, owner: &OwnerReference) -> Holder {
    let references = live["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(controller) = references.iter().find(|reference| reference["controller"] == true) else {
        return Holder::Other("no controller: somebody made it by hand".to_owned());
    };
    let text = |field: &str| controller[field].as_str().unwrap_or_default();
    if text("uid") == owner.uid {
        Holder::Owner
    } else if text("kind") == owner.kind && text("name") == owner.name && text("apiVersion") == owner.api_version {
        Holder::Predecessor
    } else {
        Holder::Other(format!("{} {}", text("kind"), text("name")))
    }
}

/// Its resource version.
pub fn resource_version(object: &Value) -> Option<String> {
    object["metadata"]["resourceVersion"].as_str().map(str::to_owned)
}

/// A hash of a value; equal values have equal ones, whatever the order of their fields.
pub fn hash(value: &Value) -> String {
    // Maps are sorted by key.
    blake3::hash(value.to_string().as_bytes()).to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner() -> OwnerReference {
        OwnerReference {
            api_version: "pointsman.dev/v1alpha1".to_owned(),
            kind: "SelectorSet".to_owned(),
            name: "fleet".to_owned(),
            uid: "1".to_owned(),
            ..OwnerReference::default()
        }
    }

    fn desired() -> (Value, String) {
        let hash = hash(&json!("desired"));
        let annotations = json!({APPLIED_HASH_ANNOTATION: hash});
        (json!({"metadata": {"name": "fleet", "annotations": annotations}, "spec": {"cpu": "1000m", "n": 1}}), hash)
    }

    /// The desired object as the apiserver gives it back: with defaults, and a quantity in another spelling.
    fn live() -> Value {
        let (mut live, _) = desired();
        live["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "pointsman.dev/v1alpha1", "kind": "SelectorSet", "name": "fleet", "uid": "1", "controller": true,
        }]);
        live["metadata"]["resourceVersion"] = json!("7");
        live["spec"]["cpu"] = json!("1");
        live["spec"]["default"] = json!("ClusterFirst");
        live
    }

    fn decide_now(live: Option<&Value>, remembered: Option<&Remembered>, after: Duration) -> Step {
        let (desired, hash) = desired();
        decide(&desired, &hash, live, remembered, &owner(), Instant::now() + after)
    }

    fn applied(live: &Value) -> Remembered {
        let (desired, of) = desired();
        Remembered::Applied { hash: of, projection: hash(&project(live, &desired)), written: Some(Instant::now()) }
    }

    #[test]
    fn defaults_and_normalised_values_are_no_difference() {
        let mut live = live();
        let remembered = applied(&live);
        assert_eq!(decide_now(Some(&live), Some(&remembered), Duration::ZERO), Step::Keep);
        live["metadata"]["annotations"]["somebody/else"] = json!("now");
        live["metadata"]["resourceVersion"] = json!("8");
        live["status"] = json!({"replicas": 3});
        assert_eq!(decide_now(Some(&live), Some(&remembered), Duration::ZERO), Step::Keep);
    }

    #[test]
    fn what_others_change_is_put_back_but_not_in_a_race() {
        let mut live = live();
        let remembered = applied(&live);
        live["spec"]["n"] = json!(2);
        let soon = decide_now(Some(&live), Some(&remembered), Duration::from_secs(1));
        assert!(matches!(soon, Step::Later(pause) if pause <= CORRECTION_PAUSE), "{soon:?}");
        assert_eq!(decide_now(Some(&live), Some(&remembered), CORRECTION_PAUSE * 2), Step::Write);
    }

    #[test]
    fn a_new_wish_is_written_at_once() {
        let live = live();
        let remembered =
            Remembered::Applied { hash: "older".to_owned(), projection: String::new(), written: Some(Instant::now()) };
        assert_eq!(decide_now(Some(&live), Some(&remembered), Duration::ZERO), Step::Write);
        assert_eq!(decide_now(None, Some(&applied(&live)), Duration::ZERO), Step::Write, "it was deleted");
    }

    #[test]
    fn a_restarted_operator_knows_its_own_work() {
        let mut live = live();
        live["spec"]["cpu"] = json!("1000m");
        assert_eq!(decide_now(Some(&live), None, Duration::ZERO), Step::Keep);
        live["spec"]["n"] = json!(2);
        assert_eq!(decide_now(Some(&live), None, Duration::ZERO), Step::Write);
        live["spec"]["n"] = json!(1);
        live["metadata"]["annotations"][APPLIED_HASH_ANNOTATION] = json!("older");
        assert_eq!(decide_now(Some(&live), None, Duration::ZERO), Step::Write, "fields may have to go");
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let mut live = live();
        live["metadata"]["ownerReferences"][0]["kind"] = json!("Gateway");
        live["metadata"]["ownerReferences"][0]["uid"] = json!("2");
        assert_eq!(decide_now(Some(&live), None, Duration::ZERO), Step::Conflict("Gateway fleet".to_owned()));
        live["metadata"]["ownerReferences"] = json!(null);
        assert!(matches!(decide_now(Some(&live), None, Duration::ZERO), Step::Conflict(_)));
    }

    #[test]
    fn what_is_being_deleted_is_waited_for() {
        let mut live = live();
        live["metadata"]["ownerReferences"][0]["uid"] = json!("0");
        assert!(
            matches!(decide_now(Some(&live), None, Duration::ZERO), Step::Later(_)),
            "of a set of this name before"
        );
        live["metadata"]["ownerReferences"][0]["uid"] = json!("1");
        live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(matches!(decide_now(Some(&live), None, Duration::ZERO), Step::Later(_)));
    }

    #[test]
    fn a_refusal_is_believed_for_a_while() {
        let live = live();
        let (_, hash) = desired();
        let refused = Remembered::Refused {
            hash,
            resource_version: Some("7".to_owned()),
            words: "immutable".to_owned(),
            at: Instant::now(),
        };
        assert_eq!(decide_now(Some(&live), Some(&refused), Duration::ZERO), Step::Refused("immutable".to_owned()));
        assert_eq!(decide_now(Some(&live), Some(&refused), REFUSAL_PAUSE * 2), Step::Write);
        let mut changed = live;
        changed["metadata"]["resourceVersion"] = json!("8");
        assert_eq!(decide_now(Some(&changed), Some(&refused), Duration::ZERO), Step::Write);
    }
}
