//! The sections about the queue: root profile and models (spec scheduling 1.5).

use std::{collections::HashSet, sync::Arc};

use super::{
    DocumentError,
    node::{Cursor, Fields},
};
use crate::selection::{
    config::QueuePolicy,
    queue::profile::{CacheBucket, FamilyBucket, PolicyClass, PolicyProfile, PolicyProfiles},
};

/// Keys of a profile.
pub(super) const PROFILE_KEYS: [&str; 3] = ["default_policy_family", "policy_classes", "uncached_isl_buckets"];

const CLASS_KEYS: [&str; 10] = [
    "name",
    "policy_family",
    "cache_bucket",
    "queue_policy",
    "quantum",
    "prefill_busy_threshold",
    "prefill_busy_threshold_frac",
    "request_queue_limit_per_worker",
    "raw_isl_token_queue_limit_per_worker",
    "cached_token_queue_limit_per_worker",
];

/// Reads the root profile and those of the models.
pub(super) fn read(document: &Fields<'_>) -> Result<PolicyProfiles, DocumentError> {
    let mut profiles = PolicyProfiles::default();
    let given: Vec<_> = PROFILE_KEYS.iter().filter_map(|key| document.given(key)).collect();
    match given.len() {
        0 => {}
        3 => profiles.root = Some(Arc::new(profile(document, "root")?)),
        _ => {
            return Err(given[0].invalid(
                "root profile must specify default_policy_family, uncached_isl_buckets, and policy_classes when any \
                 root profile field is present",
            ));
        }
    }
    for (key, model) in document.get("models").map(Cursor::entries).transpose()?.unwrap_or_default() {
        if key.name.is_empty() {
            return Err(model.invalid("model profile name must not be empty"));
        }
        let fields = model.fields(&PROFILE_KEYS)?;
        let read = profile(&fields, &format!("model {:?}", key.name))?;
        profiles.models.insert(key.name.clone(), Arc::new(read));
    }
    Ok(profiles)
}

fn profile(fields: &Fields<'_>, location: &str) -> Result<PolicyProfile, DocumentError> {
    let default_family = fields.required("default_policy_family")?;
    identifier(default_family, "policy family", location)?;
    let bucket_list = fields.required("uncached_isl_buckets")?;
    let buckets = buckets(bucket_list, location)?;
    let class_list = fields.required("policy_classes")?;
    let mut classes: Vec<PolicyClass> = Vec::new();
    let items = class_list.items()?;
    if items.is_empty() {
        return Err(class_list.invalid(format!("{location} policy_classes must not be empty")));
    }
    for item in &items {
        let class = class(item, &buckets, location)?;
        if classes.iter().any(|other| other.name == class.name) {
            return Err(item.invalid(format!("{location} contains duplicate policy class {:?}", class.name)));
        }
        classes.push(class);
    }
    let profile = PolicyProfile { default_family: default_family.text()?.into(), buckets, classes };
    check_matrix(&profile, &items, (default_family, class_list), location)?;
    Ok(profile)
}

fn buckets(list: &Cursor<'_>, location: &str) -> Result<Vec<CacheBucket>, DocumentError> {
    let items = list.items()?;
    let mut buckets: Vec<CacheBucket> = Vec::new();
    for item in &items {
        let fields = item.fields(&["min_tokens", "bucket"])?;
        let min_tokens = fields.required("min_tokens")?;
        let name = fields.required("bucket")?;
        let bucket = CacheBucket { min_tokens: min_tokens.count()?, name: name.text()?.into() };
        match buckets.last() {
            None if bucket.min_tokens != 0 => {
                return Err(min_tokens.invalid(format!("{location} uncached_isl_buckets must start at min_tokens 0")));
            }
            Some(last) if last.min_tokens >= bucket.min_tokens => {
                let reason = format!("{location} uncached_isl_buckets min_tokens must be strictly increasing");
                return Err(min_tokens.invalid(reason));
            }
            _ => {}
        }
        identifier(name, "cache bucket", location)?;
        if buckets.iter().any(|other| other.name == bucket.name) {
            return Err(name.invalid(format!("{location} contains duplicate cache bucket {:?}", bucket.name)));
        }
        buckets.push(bucket);
    }
    if buckets.is_empty() {
        return Err(list.invalid(format!("{location} uncached_isl_buckets must not be empty")));
    }
    Ok(buckets)
}

fn class(item: &Cursor<'_>, buckets: &[CacheBucket], location: &str) -> Result<PolicyClass, DocumentError> {
    let fields = item.fields(&CLASS_KEYS)?;
    let name = fields.required("name")?;
    let word = name.text()?;
    let of_class = |what: &str| format!("{location} policy class {word:?} {what}");
    let quantum = fields.required("quantum")?;
    let queue_policy = fields.optional("queue_policy", queue_policy)?.unwrap_or_default();
    let fraction = fields.optional("prefill_busy_threshold_frac", Cursor::number)?;
    let class = PolicyClass {
        name: word.into(),
        cell: None,
        queue_policy,
        quantum: quantum.count()?,
        prefill_busy_threshold: fields.optional("prefill_busy_threshold", Cursor::count)?,
        prefill_busy_threshold_frac: fraction,
        request_queue_limit_per_worker: fields.optional("request_queue_limit_per_worker", Cursor::count)?,
        raw_isl_token_queue_limit_per_worker: fields.optional("raw_isl_token_queue_limit_per_worker", Cursor::count)?,
        cached_token_queue_limit_per_worker: fields.optional("cached_token_queue_limit_per_worker", Cursor::count)?,
    };
    identifier(name, "policy class", location)?;
    if class.quantum == 0 {
        return Err(quantum.invalid(of_class("quantum must be greater than zero")));
    }
    if let Some(policy) = fields.given("queue_policy").filter(|_| queue_policy == QueuePolicy::Lcfs) {
        return Err(policy.invalid(of_class("queue_policy must be fcfs or wspt")));
    }
    if fraction.is_some_and(|fraction| !(fraction.is_finite() && fraction >= 0.0)) {
        let at = fields.required("prefill_busy_threshold_frac")?;
        return Err(at.invalid(of_class("prefill_busy_threshold_frac must be finite and non-negative")));
    }
    let cell = match (fields.given("policy_family"), fields.given("cache_bucket")) {
        (None, None) => None,
        (Some(family), Some(bucket)) => {
            identifier(family, "policy family", location)?;
            identifier(bucket, "cache bucket", location)?;
            let cell = FamilyBucket { family: family.text()?.into(), bucket: bucket.text()?.into() };
            if !buckets.iter().any(|known| known.name == cell.bucket) {
                let reason = of_class(&format!("references unknown cache bucket {:?}", cell.bucket));
                return Err(bucket.invalid(reason));
            }
            Some(cell)
        }
        _ => {
            let reason = "must specify both policy_family and cache_bucket or neither for an explicit class";
            return Err(item.invalid(of_class(reason)));
        }
    };
    Ok(PolicyClass { cell, ..class })
}

/// Every family has one class a bucket, and no explicit class has a family's name.
fn check_matrix(
    profile: &PolicyProfile,
    items: &[Cursor<'_>],
    (default_family, class_list): (&Cursor<'_>, &Cursor<'_>),
    location: &str,
) -> Result<(), DocumentError> {
    let mut families: Vec<&str> = Vec::new();
    let mut cells = HashSet::new();
    for (class, item) in profile.classes.iter().zip(items) {
        let Some(cell) = &class.cell else { continue };
        if !families.contains(&&*cell.family) {
            families.push(&cell.family);
        }
        if !cells.insert((&*cell.family, &*cell.bucket)) {
            return Err(item.invalid(format!(
                "{location} contains duplicate policy classes for family {:?} and bucket {:?}",
                cell.family, cell.bucket
            )));
        }
    }
    if !families.contains(&&*profile.default_family) {
        return Err(default_family.invalid(format!(
            "{location} default_policy_family {:?} does not name a configured family",
            profile.default_family
        )));
    }
    for (class, item) in profile.classes.iter().zip(items) {
        if class.cell.is_none() && families.contains(&&*class.name) {
            let reason = format!("{location} explicit policy class {:?} collides with a policy family", class.name);
            return Err(item.invalid(reason));
        }
    }
    for family in families {
        for bucket in &profile.buckets {
            if !cells.contains(&(family, &*bucket.name)) {
                return Err(class_list.invalid(format!(
                    "{location} is missing a policy class for family {family:?} and bucket {:?}",
                    bucket.name
                )));
            }
        }
    }
    Ok(())
}

fn queue_policy(value: &Cursor<'_>) -> Result<QueuePolicy, DocumentError> {
    value.text()?.parse().map_err(|error| value.unreadable(format!("{error}")))
}

/// Checks a name.
pub(super) fn identifier(value: &Cursor<'_>, kind: &str, location: &str) -> Result<(), DocumentError> {
    let name = value.text()?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !name.is_empty() && name.chars().all(allowed) {
        return Ok(());
    }
    Err(value.invalid(format!("{location} {kind} name {name:?} must match [A-Za-z0-9_.-]+")))
}
