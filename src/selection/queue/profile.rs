//! Policy classes of the queue: data, and which class a request belongs to (spec scheduling 1.5).
//!
//! A profile is complete and consistent by construction of its author: the policy document checks names, buckets and the
//! matrix of families and buckets before it builds one.

use std::{collections::BTreeMap, sync::Arc};

use super::order::QueuePolicy;

/// How requests of one class wait.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyClass {
    /// Name, unique in its profile.
    pub name: Arc<str>,
    /// Family and cache bucket of a family class; `None` for an explicit class, which requests name directly.
    pub cell: Option<FamilyBucket>,
    /// Order inside the class.
    pub queue_policy: QueuePolicy,
    /// Share in deficit round robin, in uncached tokens; at least 1.
    pub quantum: u64,
    /// A rank with more prefill tokens in progress is busy.
    pub prefill_busy_threshold: Option<u64>,
    /// The same, as a fraction of the worker's `max_num_batched_tokens`; not negative, may be infinite.
    pub prefill_busy_threshold_frac: Option<f64>,
    /// Most waiting requests, times the workers of the partition.
    pub request_queue_limit_per_worker: Option<u64>,
    /// Most waiting prompt tokens, times the workers of the partition.
    pub raw_isl_token_queue_limit_per_worker: Option<u64>,
    /// Most waiting prompt tokens that are cached somewhere, times the workers of the partition.
    pub cached_token_queue_limit_per_worker: Option<u64>,
}

/// A cell of the matrix of families and buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyBucket {
    /// Policy family.
    pub family: Arc<str>,
    /// Cache bucket.
    pub bucket: Arc<str>,
}

/// A range of uncached prompt tokens, from `min_tokens` to the next bucket's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheBucket {
    /// First number of uncached tokens in it.
    pub min_tokens: u64,
    /// Name, unique in its profile.
    pub name: Arc<str>,
}

/// The classes of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyProfile {
    /// Family of requests that name none.
    pub default_family: Arc<str>,
    /// Ascending; the first starts at 0.
    pub buckets: Vec<CacheBucket>,
    /// In the order of the document, which deficit round robin follows. Never empty.
    pub classes: Vec<PolicyClass>,
}

impl PolicyProfile {
    /// The one class of a model without a profile: quantum 1, no limits.
    pub fn synthetic(threshold_frac: Option<f64>, queue_policy: QueuePolicy) -> Self {
        let (name, bucket): (Arc<str>, Arc<str>) = ("default".into(), "all".into());
        let class = PolicyClass {
            name: Arc::clone(&name),
            cell: Some(FamilyBucket { family: Arc::clone(&name), bucket: Arc::clone(&bucket) }),
            queue_policy,
            quantum: 1,
            prefill_busy_threshold: None,
            prefill_busy_threshold_frac: threshold_frac,
            request_queue_limit_per_worker: None,
            raw_isl_token_queue_limit_per_worker: None,
            cached_token_queue_limit_per_worker: None,
        };
        Self { default_family: name, buckets: vec![CacheBucket { min_tokens: 0, name: bucket }], classes: vec![class] }
    }

    /// Whether requests may have to wait at all: some class has a threshold.
    pub fn queues(&self) -> bool {
        self.classes
            .iter()
            .any(|class| class.prefill_busy_threshold.is_some() || class.prefill_busy_threshold_frac.is_some())
    }

    /// Whether `name` is an explicit class or a family.
    pub fn knows(&self, name: &str) -> bool {
        self.classes.iter().any(|class| match &class.cell {
            Some(cell) => *cell.family == *name,
            None => *class.name == *name,
        })
    }

    /// The class of a request: the explicit class `name`, else the cell of family `name` (or of the default family when
    /// there is none of that name) and the bucket of `uncached_tokens`. Blanks around the name do not count.
    pub fn resolve(&self, name: Option<&str>, uncached_tokens: u64) -> usize {
        let name = name.map(str::trim).filter(|name| !name.is_empty() && self.knows(name));
        let explicit = |name: &str| self.classes.iter().position(|class| class.cell.is_none() && *class.name == *name);
        if let Some(at) = name.and_then(explicit) {
            return at;
        }
        let family = name.unwrap_or(&self.default_family);
        let bucket = self.buckets.iter().rev().find(|bucket| bucket.min_tokens <= uncached_tokens);
        let is_cell =
            |cell: &FamilyBucket| *cell.family == *family && bucket.is_some_and(|bucket| bucket.name == cell.bucket);
        self.classes.iter().position(|class| class.cell.as_ref().is_some_and(is_cell)).unwrap_or(0)
    }
}

/// The profiles of a policy document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyProfiles {
    /// For models that have none of their own.
    pub root: Option<Arc<PolicyProfile>>,
    /// By model name; replaces the root profile completely.
    pub models: BTreeMap<String, Arc<PolicyProfile>>,
}

impl PolicyProfiles {
    /// The profile of a model, if the document has one for it.
    pub fn of(&self, model_name: &str) -> Option<&Arc<PolicyProfile>> {
        self.models.get(model_name).or(self.root.as_ref())
    }
}
