//! The list of operations: method and path template of every route. It names requests in metrics and says what works
//! before start-up recovery is over; the router and the OpenAPI document are tested against it.

use axum::http::Method;

/// Method and path template of every operation, those of the hot path first.
pub(super) const OPERATIONS: [(&str, &str); 42] = [
    ("POST", "/select_and_reserve"),
    ("POST", "/reservations/{selection_id}/prefill_complete"),
    ("DELETE", "/reservations/{selection_id}"),
    ("POST", "/select"),
    ("POST", "/reservations/{selection_id}/output_block"),
    ("POST", "/reservations"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("POST", "/workers"),
    ("GET", "/workers"),
    ("PATCH", "/workers/{worker_id}"),
    ("DELETE", "/workers/{worker_id}"),
    ("GET", "/loads"),
    ("GET", "/queue"),
    ("POST", "/potential_loads"),
    ("POST", "/overlap_scores"),
    ("GET", "/dump"),
    ("GET", "/catalog"),
    ("PUT", "/catalog/{owner}"),
    ("GET", "/listeners"),
    ("GET", "/policy"),
    ("GET", "/openapi.json"),
    ("POST", "/replica_sync/register_peer"),
    ("POST", "/replica_sync/deregister_peer"),
    ("GET", "/replica_sync/peers"),
    ("POST", "/query"),
    ("POST", "/query_by_hash"),
    ("POST", "/register"),
    ("POST", "/unregister"),
    ("POST", "/register_peer"),
    ("POST", "/deregister_peer"),
    ("GET", "/peers"),
    ("POST", "/reopen_logs"),
    ("POST", "/test/pause_listener"),
    ("POST", "/test/resume_listener"),
    ("GET", "/replica_sync/status"),
    ("GET", "/replica_sync/state"),
    ("GET", "/replica_sync/index"),
    ("GET", "/replica_sync/index/chunk"),
];

/// One operation, or none of them. A label that is never built from what a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation(usize);

impl Operation {
    /// Unknown route or method.
    pub const OTHER: Self = Self(OPERATIONS.len());
    /// Number of values, [`Self::OTHER`] included.
    pub const COUNT: usize = OPERATIONS.len() + 1;

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// The operation a request asks for.
    pub fn of(method: &Method, path: &str) -> Self {
        let method = if method == Method::HEAD { "GET" } else { method.as_str() };
        let found = OPERATIONS.iter().position(|(verb, template)| *verb == method && matches(template, path));
        found.map_or(Self::OTHER, Self)
    }

    /// Dense number, for tables.
    pub fn index(self) -> usize {
        self.0
    }

    /// Method and template.
    pub fn labels(self) -> (&'static str, &'static str) {
        OPERATIONS.get(self.0).copied().unwrap_or(("other", "other"))
    }

    /// Whether it works before start-up recovery is over. What is no operation is left to the router's 404 and 405.
    pub fn open_during_recovery(self) -> bool {
        let (_, template) = self.labels();
        matches!(template, "other" | "/livez" | "/readyz" | "/metrics")
            || ["/catalog", "/workers", "/replica_sync"].iter().any(|prefix| template.starts_with(prefix))
    }
}

/// Whether `path` is of the form `template`; a `{...}` stands for one segment.
fn matches(template: &str, path: &str) -> bool {
    let Some((fixed, rest)) = template.split_once('{') else { return template == path };
    let Some(tail) = path.strip_prefix(fixed) else { return false };
    let after = rest.split_once('}').map_or("", |(_, after)| after);
    match after {
        "" => !tail.is_empty() && !tail.contains('/'),
        after => tail.strip_suffix(after).is_some_and(|segment| !segment.contains('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(method: Method, path: &str) -> (&'static str, &'static str) {
        Operation::of(&method, path).labels()
    }

    #[test]
    fn requests_are_named_by_template() {
        assert_eq!(labels(Method::POST, "/select"), ("POST", "/select"));
        assert_eq!(labels(Method::HEAD, "/loads"), ("GET", "/loads"));
        assert_eq!(labels(Method::DELETE, "/reservations/a%2Fb"), ("DELETE", "/reservations/{selection_id}"));
        assert_eq!(
            labels(Method::POST, "/reservations//output_block"),
            ("POST", "/reservations/{selection_id}/output_block")
        );
        for path in ["/select/", "/reservations/", "/reservations/a/b", "/workers/1/x", "/", "/SELECT", ""] {
            assert_eq!(Operation::of(&Method::DELETE, path), Operation::OTHER, "{path}");
        }
        assert_eq!(Operation::of(&Method::GET, "/select"), Operation::OTHER);
    }

    #[test]
    fn selections_wait_for_recovery_and_catalog_and_probes_do_not() {
        let open = |method, path| Operation::of(&method, path).open_during_recovery();
        for path in ["/livez", "/readyz", "/metrics", "/catalog", "/workers", "/replica_sync/peers"] {
            assert!(open(Method::GET, path), "{path}");
        }
        assert!(open(Method::PUT, "/catalog/file.default"));
        assert!(open(Method::PATCH, "/workers/1"));
        for path in ["/health", "/ready", "/loads", "/dump", "/listeners"] {
            assert!(!open(Method::GET, path), "{path}");
        }
        assert!(!open(Method::POST, "/select"));
    }
}
