//! Documents that are refused, with the path of what is wrong.

use super::policy;

/// The deserializer's own words differ in case and quotes from one error type to the next.
fn plain(text: &str) -> String {
    text.to_lowercase().replace('`', "")
}

#[test]
fn wrong_documents_say_where() {
    let many = format!("filters: [{}]", vec!["{cel: 'true'}"; 17].join(", "));
    let cases = [
        ("{}", "a pipeline needs `filters`, `scorers` or a `picker`"),
        ("filter: []", "Unknown field filter"),
        ("filters: [{cel: 'true', weights: 1}]", "filters[0].weights: Unknown field weights"),
        ("filters: [{name: x}]", "filters[0]: needs either `cel` or `type`"),
        ("filters: [{cel: 'true', type: min-overlap}]", "filters[0]: needs either `cel` or `type`"),
        ("filters: [{cel: 'true'}, {cel: 'true', weight: 1}]", "filters[1]: a filter has no weight"),
        ("filters: [{cel: 'true', parameters: {}}]", "filters[0]: an expression has no `parameters`"),
        (
            "filters: [{cel: \"load.active_requests <\\n 3 && lode\"}]",
            "filters[0].cel: line 2, column 7: unknown name `lode`",
        ),
        (
            "filters: [{type: min-load}]",
            "filters[0].type: unknown type \"min-load\"; there are min-overlap, max-active",
        ),
        ("filters: [{type: min-overlap}]", "filters[0].parameters: Missing field device_blocks"),
        (
            "filters: [{type: min-overlap, parameters: {device_blocks: -1}}]",
            "filters[0].parameters: device_blocks: Invalid value",
        ),
        ("filters: [{type: max-kv-utilisation, parameters: {max: .nan}}]", "filters[0].parameters.max: must be finite"),
        (
            "filters: [{type: min-trust, parameters: {at_least: stale}}]",
            "filters[0].parameters: at_least: Unknown variant stale",
        ),
        ("filters: [{name: a b, cel: 'true'}]", "filters[0].name: \"a b\" is not 1 to 64 of"),
        ("filters: [{name: a, cel: 'true'}, {name: a, cel: 'true'}]", "filters[1].name: \"a\" is there twice"),
        ("scorers: [{type: active-requests, parameters: {x: 1}}]", "scorers[0].parameters: "),
        ("scorers: [{type: active-requests, weight: .inf}]", "scorers[0].weight: must be finite"),
        ("scorers: [{type: kv-utilisation, parameters: {when_unknown: .inf}}]", "when_unknown: must be finite"),
        ("scorers: [{cel: 'true'}]", "scorers[0].cel: line 1, column 1: a scorer must be a number, not bool"),
        ("picker: {cel: '1'}", "picker: a picker cannot be an expression"),
        ("picker: {type: lowest-cost, weight: 2}", "picker: a picker has no weight"),
        ("picker: {type: highest}", "picker.type: unknown type \"highest\"; there are lowest-cost"),
        (
            "picker: {type: lowest-cost, parameters: {temperature: -1}}",
            "picker.parameters.temperature: must be finite and at least 0",
        ),
        ("picker: {type: lowest-cost, parameters: {ties: none}}", "picker.parameters: ties: Unknown variant none"),
        (many.as_str(), "filters: at most 16 entries"),
    ];
    for (yaml, part) in cases {
        let error = policy(yaml).expect_err(yaml).to_string();
        assert!(plain(&error).contains(&plain(part)), "{yaml}\n{error}");
    }
}
