//! A live object through the eyes of a desired one: the fields that the desired one has, with the live values.

use serde_json::{Map, Value};

/// `live` cut down to what `desired` speaks about. Fields that are missing are null. Items of lists are found by their
/// `name` where all desired ones have one of their own, else by place; a list of another length, or of plain values, is
/// taken whole.
pub fn project(live: &Value, desired: &Value) -> Value {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            let field = |(key, value): (&String, &Value)| {
                (key.clone(), live.get(key).map_or(Value::Null, |found| project(found, value)))
            };
            Value::Object(desired.iter().map(field).collect::<Map<_, _>>())
        }
        (Value::Array(live), Value::Array(desired)) if !desired.is_empty() => match names(desired) {
            Some(names) => {
                let item = |(name, desired): (&str, &Value)| {
                    let found = live.iter().find(|item| item["name"].as_str() == Some(name));
                    found.map_or(Value::Null, |found| project(found, desired))
                };
                Value::Array(names.into_iter().zip(desired).map(item).collect())
            }
            None if live.len() == desired.len() => {
                Value::Array(live.iter().zip(desired).map(|(live, desired)| project(live, desired)).collect())
            }
            None => Value::Array(live.clone()),
        },
        (live, _) => live.clone(),
    }
}

/// The names of the items, where each has one and no two the same.
fn names(items: &[Value]) -> Option<Vec<&str>> {
    let names: Vec<&str> = items.iter().map(|item| item["name"].as_str()).collect::<Option<_>>()?;
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1]).then_some(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_add_is_not_seen() {
        let desired = json!({"a": 1, "list": [{"name": "x", "v": 1}], "words": ["p"], "empty": {}});
        let live = json!({
            "a": 1, "added": 2, "words": ["p"], "empty": {"added": 1},
            "list": [{"name": "injected", "v": 9}, {"name": "x", "v": 1, "default": true}],
        });
        assert_eq!(project(&live, &desired), desired);
    }

    #[test]
    fn what_others_change_or_remove_is_seen() {
        let desired = json!({"a": {"b": 1}, "list": [{"name": "x", "v": 1}], "words": ["p"], "plain": [{"v": 1}]});
        for live in [
            json!({"a": {"b": 2}, "list": [{"name": "x", "v": 1}], "words": ["p"], "plain": [{"v": 1}]}),
            json!({"a": {}, "list": [{"name": "x", "v": 1}], "words": ["p"], "plain": [{"v": 1}]}),
            json!({"a": {"b": 1}, "list": [], "words": ["p"], "plain": [{"v": 1}]}),
            json!({"a": {"b": 1}, "list": [{"name": "x", "v": 1}], "words": ["p", "q"], "plain": [{"v": 1}]}),
            json!({"a": {"b": 1}, "list": [{"name": "x", "v": 1}], "words": ["p"], "plain": [{"v": 1}, {"v": 2}]}),
            json!({"list": [{"name": "x", "v": 1}], "words": ["p"], "plain": [{"v": 1}]}),
        ] {
            assert_ne!(project(&live, &desired), desired, "{live}");
        }
    }

    #[test]
    fn items_that_share_a_name_are_compared_by_place() {
        let desired = json!([{"name": "v", "at": "/a"}, {"name": "v", "at": "/b"}]);
        assert_eq!(project(&desired, &desired), desired);
        assert_ne!(project(&json!([{"name": "v", "at": "/a"}, {"name": "v", "at": "/c"}]), &desired), desired);
    }
}
