//! Every name that the operator shares with the cluster: labels, annotations, field managers, condition types, reasons,
//! ports. Reasons are stable words: alerts and scripts match on them.

/// API group.
pub const GROUP: &str = "pointsman.dev";
/// API version.
pub const VERSION: &str = "v1alpha1";
/// Field manager of everything the operator applies, status included.
pub const FIELD_MANAGER: &str = "pointsman-controller";
/// `app.kubernetes.io/managed-by` of what a SelectorSet owns.
pub const MANAGED_BY: &str = "pointsman-controller";
/// Finalizer of External SelectorSets: their selectors outlive the object, so their catalog is emptied first.
pub const CATALOG_FINALIZER: &str = "pointsman.dev/catalog";
/// Label with the name of the SelectorSet on everything it owns, pods included.
pub const SELECTOR_SET_LABEL: &str = "pointsman.dev/selector-set";
/// Prefix of the annotations by which a pod overrides its pool.
pub const ANNOTATION_PREFIX: &str = "pointsman.dev/";
/// Annotation of selector pods: hash of what they must be restarted for and the pod template does not show.
pub const RESTART_ANNOTATION: &str = "pointsman.dev/restart-hash";
/// Annotation of what a SelectorSet owns: hash of the object as it was last applied.
pub const APPLIED_HASH_ANNOTATION: &str = "pointsman.dev/applied-hash";
/// Name of the Lease that operators elect a leader by.
pub const LEASE_NAME: &str = "pointsman-controller";

/// HTTP port of a selector.
pub const HTTP_PORT: u16 = 8092;
/// Port on which a selector publishes to its peers.
pub const REPLICA_SYNC_PORT: u16 = 9092;
/// Name of the HTTP port in pods and Services.
pub const HTTP_PORT_NAME: &str = "http";
/// Name of the publisher's port in pods and Services.
pub const REPLICA_SYNC_PORT_NAME: &str = "replica-sync";

/// Annotations by which a pod overrides its pool. A value that cannot be used rejects the pod's workers, and no others.
pub mod annotations {
    /// Tokens a block.
    pub const BLOCK_SIZE: &str = "pointsman.dev/block-size";
    /// Port of the worker's HTTP endpoint, a number.
    pub const ENDPOINT_PORT: &str = "pointsman.dev/endpoint-port";
    /// Port of rank 0's KV events.
    pub const KV_EVENTS_PORT: &str = "pointsman.dev/kv-events-port";
    /// Port of rank 0's replay socket.
    pub const REPLAY_PORT: &str = "pointsman.dev/replay-port";
    /// Ranks of the worker.
    pub const DATA_PARALLEL_SIZE: &str = "pointsman.dev/data-parallel-size";
    /// First global rank of the worker.
    pub const DATA_PARALLEL_START_RANK: &str = "pointsman.dev/data-parallel-start-rank";
    /// Most tokens a batch of the engine.
    pub const MAX_NUM_BATCHED_TOKENS: &str = "pointsman.dev/max-num-batched-tokens";
    /// KV capacity in blocks.
    pub const TOTAL_KV_BLOCKS: &str = "pointsman.dev/total-kv-blocks";
    /// Taints, separated by commas; they replace the pool's.
    pub const TAINTS: &str = "pointsman.dev/taints";
    /// Identity that outlives restarts.
    pub const STABLE_ROUTING_ID: &str = "pointsman.dev/stable-routing-id";
    /// `true` takes the pod out: it is no worker.
    pub const EXCLUDE: &str = "pointsman.dev/exclude";

    /// All of them.
    pub const ALL: [&str; 11] = [
        BLOCK_SIZE,
        ENDPOINT_PORT,
        KV_EVENTS_PORT,
        REPLAY_PORT,
        DATA_PARALLEL_SIZE,
        DATA_PARALLEL_START_RANK,
        MAX_NUM_BATCHED_TOKENS,
        TOTAL_KV_BLOCKS,
        TAINTS,
        STABLE_ROUTING_ID,
        EXCLUDE,
    ];
}

/// Condition types.
pub mod condition {
    /// SelectorSet: at least one selector is ready.
    pub const AVAILABLE: &str = "Available";
    /// SelectorSet: a roll-out or a scaling is under way.
    pub const PROGRESSING: &str = "Progressing";
    /// SelectorSet: every selector has the newest catalog.
    pub const CATALOG_SYNCED: &str = "CatalogSynced";
    /// SelectorSet: every selector has all others as peers.
    pub const PEERS_WIRED: &str = "PeersWired";
    /// SelectorSet: something needs a person.
    pub const DEGRADED: &str = "Degraded";
    /// ModelPool: the spec is one that can be followed.
    pub const ACCEPTED: &str = "Accepted";
    /// ModelPool: there are workers.
    pub const WORKERS_DISCOVERED: &str = "WorkersDiscovered";
    /// ModelPool: every selector has the newest workers.
    pub const SYNCED: &str = "Synced";
}

/// Reasons of conditions.
pub mod reason {
    /// Nothing is wrong, and nothing more is to be said.
    pub const AS_EXPECTED: &str = "AsExpected";
    /// SelectorSet: enough selectors are ready.
    pub const SELECTORS_READY: &str = "SelectorsReady";
    /// SelectorSet: no selector is ready.
    pub const NO_SELECTOR_READY: &str = "NoSelectorReady";
    /// SelectorSet: it asks for no replicas.
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    /// SelectorSet: pods are being replaced.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// SelectorSet: replicas come or go.
    pub const SCALING: &str = "Scaling";
    /// SelectorSet: pods are as wanted.
    pub const ROLLED_OUT: &str = "RolledOut";
    /// SelectorSet: selectors do not have the newest catalog yet.
    pub const CATALOG_BEHIND: &str = "CatalogBehind";
    /// Every selector has the newest catalog.
    pub const CATALOG_APPLIED: &str = "CatalogApplied";
    /// A selector does not answer the operator.
    pub const SELECTOR_UNREACHABLE: &str = "SelectorUnreachable";
    /// A selector refuses the catalog.
    pub const CATALOG_REFUSED: &str = "CatalogRefused";
    /// Selectors are not registered with each other yet.
    pub const PEERS_MISSING: &str = "PeersMissing";
    /// Every selector has all others as peers.
    pub const ALL_PEERS_WIRED: &str = "AllPeersWired";
    /// Replica sync is turned off.
    pub const REPLICA_SYNC_DISABLED: &str = "ReplicaSyncDisabled";
    /// An object of a name that is wanted belongs to somebody else; it is not touched.
    pub const NAME_CONFLICT: &str = "NameConflict";
    /// A Secret or ConfigMap that the spec names is missing, or lacks the key.
    pub const REFERENCE_MISSING: &str = "ReferenceMissing";
    /// The policy cannot be used; what was in force stays.
    pub const POLICY_INVALID: &str = "PolicyInvalid";
    /// The apiserver refuses an object that is built from the spec.
    pub const APPLY_REFUSED: &str = "ApplyRefused";
    /// The pods of the selectors cannot become ready, and why.
    pub const PODS_FAILING: &str = "PodsFailing";

    /// ModelPool: accepted.
    pub const ACCEPTED: &str = "Accepted";
    /// ModelPool: the spec contradicts itself.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// ModelPool: there is no such SelectorSet in the namespace.
    pub const SELECTOR_SET_NOT_FOUND: &str = "SelectorSetNotFound";
    /// ModelPool: an older pool of the same model and group has another block size or role; it wins.
    pub const POOL_CONFLICT: &str = "PoolConflict";
    /// ModelPool: nothing matches.
    pub const NO_ENDPOINTS: &str = "NoEndpoints";
    /// ModelPool: there are endpoints, and none of them is a worker; the list of rejections says why.
    pub const ALL_REJECTED: &str = "AllRejected";
    /// ModelPool: some endpoints are no workers; the list of rejections says why.
    pub const SOME_REJECTED: &str = "SomeRejected";
    /// ModelPool: every endpoint is a worker.
    pub const WORKERS_FOUND: &str = "WorkersFound";
    /// ModelPool: the cluster has not been listed in full yet.
    pub const LISTING: &str = "Listing";
    /// ModelPool: workers are known to the selectors and take no bookings; the message says why.
    pub const NOT_SCHEDULABLE: &str = "NotSchedulable";
    /// ModelPool: no selector is there to take the workers.
    pub const NO_SELECTORS: &str = "NoSelectors";
}

/// Reasons of Kubernetes Events about what the operator did; problems have those of conditions.
pub mod event {
    /// SelectorSet: its policy document was replaced.
    pub const POLICY_CHANGED: &str = "PolicyChanged";
    /// SelectorSet: a pod that held up a roll-out was deleted.
    pub const POD_REPLACED: &str = "PodReplaced";
}

/// Reasons for which a pod or endpoint is no worker.
pub mod rejection {
    /// The pod has no address yet.
    pub const NO_ADDRESS: &str = "NoAddress";
    /// It is not ready, and its grace has passed.
    pub const NOT_READY: &str = "NotReady";
    /// The named port is neither in the slice nor in the pod.
    pub const PORT_NOT_FOUND: &str = "PortNotFound";
    /// A port that is counted up by rank is past 65535.
    pub const PORT_OUT_OF_RANGE: &str = "PortOutOfRange";
    /// An annotation has a value that cannot be used.
    pub const BAD_ANNOTATION: &str = "BadAnnotation";
    /// An annotation takes the pod out.
    pub const EXCLUDED: &str = "Excluded";
    /// Another pool has the pod already.
    pub const CLAIMED_BY_OTHER_POOL: &str = "ClaimedByOtherPool";
    /// The engine does not answer what it is asked.
    pub const ENGINE_UNREACHABLE: &str = "EngineUnreachable";
    /// The engine says what cannot be used, or contradicts the pool.
    pub const ENGINE_MISMATCH: &str = "EngineMismatch";
    /// The slice names a pod that is not there any more, or that another has replaced.
    pub const POD_GONE: &str = "PodGone";
    /// The pod has ended.
    pub const POD_FINISHED: &str = "PodFinished";
}
