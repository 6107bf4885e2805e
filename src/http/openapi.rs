//! The OpenAPI document, generated from the handlers and their types.

use std::sync::OnceLock;

use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

use super::routes::{
    catalog, index, indexer, indexer_face, inspection, peers, policy, probes, reservations, selection, workers,
};

/// The document.
#[derive(OpenApi)]
#[openapi(
    info(title = "Pointsman", description = "Selects the LLM inference worker for every request."),
    paths(
        selection::select,
        selection::select_and_reserve,
        reservations::create,
        reservations::prefill_complete,
        reservations::output_block,
        reservations::free,
        workers::upsert,
        workers::list,
        workers::update,
        workers::remove,
        catalog::status,
        catalog::apply,
        inspection::loads,
        inspection::queue,
        inspection::potential_loads,
        inspection::overlap_scores,
        inspection::dump,
        inspection::listeners,
        policy::status,
        peers::register,
        peers::deregister,
        peers::list,
        indexer::register,
        indexer::unregister,
        indexer::query,
        indexer::query_by_hash,
        indexer::pause,
        indexer::resume,
        indexer_face::register_peer,
        indexer_face::deregister_peer,
        indexer_face::peers,
        indexer_face::reopen_logs,
        peers::status,
        peers::state,
        index::summary,
        index::chunk,
        probes::health,
        probes::ready,
        probes::livez,
        probes::readyz,
        probes::metrics,
        probes::openapi,
    ),
    modifiers(&AdminTokenScheme),
)]
struct Document;

/// Says that mutating catalog and peer operations may ask for a bearer token.
struct AdminTokenScheme;

impl Modify for AdminTokenScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("Asked for by mutating catalog and peer operations when `--admin-token-file` is set"));
        let components = document.components.get_or_insert_with(Default::default);
        components.add_security_scheme("admin_token", SecurityScheme::Http(scheme.build()));
    }
}

/// The document as JSON text, with a last newline.
pub fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = Document::openapi().to_pretty_json().unwrap_or_default();
        text.push('\n');
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::operations::OPERATIONS;

    fn document() -> serde_json::Value {
        serde_json::from_str(text()).expect("the document is JSON")
    }

    #[test]
    fn every_operation_is_described_and_none_that_is_not_there() {
        let document = document();
        let described: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .expect("paths")
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().expect("methods").keys();
                methods.map(move |method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        let routed = OPERATIONS.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
        assert_eq!(described, routed);
    }

    #[test]
    fn prompt_fields_are_part_of_a_selection() {
        let document = document();
        let text = document["components"]["schemas"]["SelectRequest"].to_string();
        let prompt = document["components"]["schemas"]["PromptInput"].to_string();
        assert!(text.contains("PromptInput") || text.contains("token_ids"), "{text}");
        assert!(prompt.contains("sequence_hashes"), "{prompt}");
    }

    #[test]
    fn the_copy_in_docs_has_no_drift() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
        if std::env::var_os("POINTSMAN_BLESS").is_some() {
            std::fs::write(path, text()).expect("docs/openapi.json can be written");
        }
        let copy = std::fs::read_to_string(path).expect("docs/openapi.json is there");
        let copy: serde_json::Value = serde_json::from_str(&copy).expect("docs/openapi.json is JSON");
        assert!(copy == document(), "docs/openapi.json is stale: `POINTSMAN_BLESS=1 cargo test drift` rewrites it");
    }
}
