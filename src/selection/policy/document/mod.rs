//! The policy document: YAML text in, typed settings out (spec scheduling 1.5, spec plugins 5.1).
//!
//! | file | owns |
//! |---|---|
//! | `node` | the tree with places, and how sections read it |
//! | `router` | `router:`, 20 process settings |
//! | `profile` | root profile and `models:`, the classes of the queue |
//! | `worker_selection` | `worker_selection:` and `request_classifier:` |
//! | `shadow` | `shadow:` (ours) |
//! | `composition` | from choices to policies by role |
//! | `report` | that as data and text |
//!
//! A document is taken whole or not at all, and reading one has no effects: no file is opened and no policy is made.
//! Whatever is refused is told with line, column and field.

mod composition;
mod error;
mod node;
mod profile;
mod report;
mod router;
mod shadow;
mod worker_selection;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use self::node::{Cursor, Node, Value};
pub use self::{
    composition::{PolicyComposition, RolePolicy, apply},
    error::{DocumentError, ErrorKind, Place},
    report::{ClassReport, ComponentReport, CompositionReport, ProfileReport, RoleReport, ShadowReport},
    router::{RouterSettings, check_combination, index_promise},
    shadow::{ShadowConfig, ShadowPolicy, Share},
};
use super::{classifier::config::RequestClassifierConfig, instances::WorkerSelectionConfig};
use crate::selection::queue::profile::PolicyProfiles;

/// Longest document that is read, in bytes.
pub const MAX_DOCUMENT_BYTES: u64 = 1 << 20;

/// Top-level keys, as errors list them; the last one is ours.
const KEYS: [&str; 8] = [
    "router",
    "default_policy_family",
    "policy_classes",
    "uncached_isl_buckets",
    "models",
    "worker_selection",
    "request_classifier",
    "shadow",
];

/// A policy document.
#[derive(Clone, Debug)]
pub struct PolicyDocument {
    /// Process settings.
    pub router: RouterSettings,
    /// Classes of the queue.
    pub profiles: PolicyProfiles,
    /// Policies by role.
    pub worker_selection: Option<WorkerSelectionConfig>,
    /// What classifies requests before the queue.
    pub request_classifier: Option<RequestClassifierConfig>,
    /// Policies that are scored beside those in force.
    pub shadow: ShadowConfig,
    file: Arc<str>,
    text: Arc<str>,
    digest: String,
    tree: Arc<Node>,
}

impl PolicyDocument {
    /// Reads a document. `file` names it in places.
    ///
    /// # Errors
    /// [`DocumentError`], and nothing of the document.
    pub fn parse(text: &str, file: &str) -> Result<Self, DocumentError> {
        if text.len() as u64 > MAX_DOCUMENT_BYTES {
            return Err(DocumentError::too_large());
        }
        let tree = node::read(text)?;
        let root = Cursor::root(&tree);
        // An empty file is an empty mapping, as it is for the reference.
        let empty = Node { at: tree.at, value: Value::Map(Vec::new()) };
        let root = if root.is_null() { Cursor::root(&empty) } else { root };
        let fields = root.fields(&KEYS)?;
        let router = fields.optional("router", RouterSettings::read)?;
        let profiles = profile::read(&fields)?;
        let worker_selection = fields.optional("worker_selection", |section| worker_selection::read(section, file))?;
        let request_classifier = fields.optional("request_classifier", worker_selection::read_classifier)?;
        let is_instance = |name: &str| worker_selection.as_ref().is_some_and(|all| all.instance(name).is_some());
        let shadow = fields.optional("shadow", |section| shadow::read(section, is_instance))?;
        if router.is_none()
            && profiles == PolicyProfiles::default()
            && worker_selection.is_none()
            && request_classifier.is_none()
            && shadow.is_none()
        {
            return Err(root.invalid(
                "router policy config must define router settings, a root profile, at least one model profile, \
                 worker_selection, or request_classifier",
            ));
        }
        Ok(Self {
            router: router.unwrap_or_default(),
            profiles,
            worker_selection,
            request_classifier,
            shadow: shadow.unwrap_or_default(),
            file: file.into(),
            text: text.into(),
            digest: format!("{:032x}", xxh3_128(text.as_bytes())),
            tree: Arc::new(tree),
        })
    }

    /// What its places are in, as the user named it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The text it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether both mean the same: they differ in comments, order of keys or places at most.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let selection = |document: &Self| {
            let mut section = document.worker_selection.clone();
            for instance in section.iter_mut().flat_map(|section| &mut section.instances) {
                instance.location = None;
            }
            section
        };
        self.router == other.router
            && self.profiles == other.profiles
            && self.request_classifier == other.request_classifier
            && self.shadow == other.shadow
            && selection(self) == selection(other)
    }

    /// XXH3-128 of the text, as 32 hexadecimal digits.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Where a field stands, `worker_selection.instances[0].parameters` for example; where its nearest container stands
    /// when it is not there.
    pub fn place(&self, field: &str) -> Place {
        let (mut node, mut at) = (&*self.tree, self.tree.at);
        for part in field.split(['.', '[']).filter(|part| !part.is_empty()) {
            let next = match (&node.value, part.strip_suffix(']')) {
                (Value::List(items), Some(index)) => index.parse::<usize>().ok().and_then(|index| items.get(index)),
                (Value::Map(entries), _) => entries.iter().find(|(key, _)| key.name == part).map(|(_, node)| node),
                _ => None,
            };
            let Some(next) = next else { break };
            (node, at) = (next, next.at);
        }
        Place { line: at.line, column: at.column, field: field.to_owned() }
    }

    /// Places a policy that could not be made: at the parameter that `reason` begins with where it does, else at the
    /// instance's parameters.
    pub fn refuse_instance(&self, instance: &str, reason: String) -> DocumentError {
        let instances = self.worker_selection.as_ref().map(|section| &section.instances[..]).unwrap_or_default();
        let Some(index) = instances.iter().position(|known| known.name == instance) else {
            return DocumentError { kind: ErrorKind::Resolution, place: Place::default(), reason };
        };
        let instance = format!("worker_selection.instances[{index}]");
        let parameter = reason.split_once("\": ").map_or(&*reason, |(_, text)| text);
        let parameter = parameter.split_once([' ', ':']).map_or(parameter, |(first, _)| first);
        let exact = format!("{instance}.parameters.{parameter}");
        let is_there = |field: &str| {
            let (at, container) = (self.place(field), self.place(&format!("{instance}.parameters")));
            (at.line, at.column) != (container.line, container.column)
        };
        let type_is_wrong = reason.starts_with("unknown worker-selection policy type");
        let field = match parameter {
            _ if type_is_wrong => format!("{instance}.type"),
            "" => format!("{instance}.parameters"),
            _ if is_there(&exact) => exact,
            _ => format!("{instance}.parameters"),
        };
        DocumentError { kind: ErrorKind::Resolution, place: self.place(&field), reason }
    }
}
