//! JSON comparison with the corpora's placeholders.

use serde_json::Value;

const JSON_PREFIXES: [&str; 2] =
    ["Failed to parse the request body as JSON", "Failed to deserialize the JSON body into the target type"];

/// Differences between an expectation and an answer; empty when equal. Numbers compare by value, key order does not
/// matter. `{"$any": kind}` and `{"$set": [...]}` are placeholders; after the two fixed beginnings of JSON errors any
/// detail is accepted (compatibility deviation 14).
pub fn diff(expected: &Value, got: &Value) -> Vec<String> {
    let mut out = Vec::new();
    walk(expected, got, "$", &mut out);
    out
}

fn walk(expected: &Value, got: &Value, path: &str, out: &mut Vec<String>) {
    match (expected, got) {
        (Value::Object(e), _) if e.len() == 1 && e.contains_key("$any") => {
            let ok = match e["$any"].as_str().unwrap() {
                "uuid" => got.as_str().is_some_and(is_uuid),
                "string" => got.is_string(),
                "int" => got.is_i64() || got.is_u64(),
                _ => true,
            };
            if !ok {
                out.push(format!("{path}: expected any {}, got {}", e["$any"], short(got)));
            }
        }
        (Value::Object(e), _) if e.len() == 1 && e.contains_key("$set") => {
            let items = e["$set"].as_array().unwrap();
            let Some(list) = got.as_array().filter(|l| l.len() == items.len()) else {
                out.push(format!("{path}: expected the set {}, got {}", short(&e["$set"]), short(got)));
                return;
            };
            let mut rest: Vec<&Value> = list.iter().collect();
            for item in items {
                match rest.iter().position(|g| diff(item, g).is_empty()) {
                    Some(i) => drop(rest.remove(i)),
                    None => return out.push(format!("{path}: missing {} in {}", short(item), short(got))),
                }
            }
        }
        (Value::Object(e), Value::Object(g)) => {
            for (key, value) in e {
                match g.get(key) {
                    Some(found) => walk(value, found, &format!("{path}.{key}"), out),
                    None => out.push(format!("{path}.{key}: missing (expected {})", short(value))),
                }
            }
            for key in g.keys().filter(|k| !e.contains_key(*k)) {
                out.push(format!("{path}.{key}: unexpected {}", short(&g[key])));
            }
        }
        (Value::Array(e), Value::Array(g)) if e.len() == g.len() => {
            for (i, (x, y)) in e.iter().zip(g).enumerate() {
                walk(x, y, &format!("{path}[{i}]"), out);
            }
        }
        (Value::Number(e), Value::Number(g)) => {
            let same = match (as_i128(expected), as_i128(got)) {
                (Some(a), Some(b)) => a == b,
                _ => (e.as_f64().unwrap() - g.as_f64().unwrap()).abs() < 1e-9,
            };
            if !same {
                out.push(format!("{path}: expected {e}, got {g}"));
            }
        }
        (Value::String(e), Value::String(g)) if path.ends_with(".error") && e != g => {
            if !JSON_PREFIXES.iter().any(|p| e.starts_with(p) && g.starts_with(p)) {
                out.push(format!("{path}: expected {e:?}, got {g:?}"));
            }
        }
        _ if expected == got => {}
        _ => out.push(format!("{path}: expected {}, got {}", short(expected), short(got))),
    }
}

fn as_i128(value: &Value) -> Option<i128> {
    value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| value.as_f64().filter(|f| f.fract() == 0.0).map(|f| f as i128))
}

fn is_uuid(text: &str) -> bool {
    uuid::Uuid::try_parse(text).is_ok_and(|u| u.hyphenated().to_string() == text)
}

/// A value cut to a readable length.
pub fn short(value: &Value) -> String {
    value.to_string().chars().take(400).collect()
}

/// Replaces `${name}` in every string by `names`.
pub fn expand(value: &Value, names: &std::collections::BTreeMap<String, String>) -> Value {
    map_strings(value, &|text| {
        let mut text = text.to_owned();
        for (name, replacement) in names {
            text = text.replace(&format!("${{{name}}}"), replacement);
        }
        text
    })
}

/// Puts `${name}` back for every value of `names`.
pub fn contract(value: &Value, names: &std::collections::BTreeMap<String, String>) -> Value {
    map_strings(value, &|text| {
        let mut text = text.to_owned();
        for (name, replacement) in names {
            text = text.replace(replacement.as_str(), &format!("${{{name}}}"));
        }
        text
    })
}

fn map_strings(value: &Value, change: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => Value::Array(items.iter().map(|v| map_strings(v, change)).collect()),
        // A macro of the index corpus: `count` blocks, block i is `block_size` times the token `base + i`.
        Value::Object(map) if map.contains_key("$tokens") => {
            let get = |k: &str| map["$tokens"][k].as_u64().unwrap();
            let (base, count, size) = (get("base"), get("count"), get("block_size"));
            (0..count).flat_map(|i| std::iter::repeat_n(base + i, size as usize)).collect::<Vec<_>>().into()
        }
        Value::Object(map) => Value::Object(map.iter().map(|(k, v)| (change(k), map_strings(v, change))).collect()),
        other => other.clone(),
    }
}
