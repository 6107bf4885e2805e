//! The replica corpora's comparison: an expected object is a subset unless it says `"$exact": true`.

use serde_json::Value;

/// Compares `got` with `want`.
///
/// # Errors
/// The first difference, with its path.
pub fn fits(want: &Value, got: &Value) -> Result<(), String> {
    walk(want, got, "$")
}

fn walk(want: &Value, got: &Value, path: &str) -> Result<(), String> {
    match want {
        Value::Object(members) => {
            if members.contains_key("$any") || members.contains_key("$absent") {
                return Ok(());
            }
            if let Some(bounds) = members.get("$between") {
                let (low, high) = (bounds[0].as_f64().unwrap(), bounds[1].as_f64().unwrap());
                let inside = got.as_f64().is_some_and(|g| (low..=high).contains(&g));
                return if inside { Ok(()) } else { Err(format!("{path}: {got} is not between {low} and {high}")) };
            }
            let Some(found) = got.as_object() else { return Err(format!("{path}: wanted an object, got {got}")) };
            for (key, value) in members.iter().filter(|(k, _)| *k != "$exact") {
                let absent = value.as_object().is_some_and(|m| m.contains_key("$absent"));
                match found.get(key) {
                    Some(_) if absent => return Err(format!("{path}.{key} should be absent")),
                    Some(inner) => walk(value, inner, &format!("{path}.{key}"))?,
                    None if absent => {}
                    None => return Err(format!("{path}.{key} is missing in {got}")),
                }
            }
            let surplus: Vec<_> = found.keys().filter(|k| !members.contains_key(*k)).collect();
            if members.get("$exact") == Some(&Value::Bool(true)) && !surplus.is_empty() {
                return Err(format!("{path} has surplus members {surplus:?}"));
            }
            Ok(())
        }
        Value::Array(items) => {
            let Some(found) = got.as_array().filter(|g| g.len() == items.len()) else {
                return Err(format!("{path}: wanted {want}, got {got}"));
            };
            items.iter().zip(found).enumerate().try_for_each(|(n, (w, g))| walk(w, g, &format!("{path}[{n}]")))
        }
        Value::Number(number) => {
            let same = want == got || (got.is_number() && number.as_f64() == got.as_f64() && is_float(want, got));
            if same { Ok(()) } else { Err(format!("{path}: wanted {want}, got {got}")) }
        }
        _ if want == got => Ok(()),
        _ => Err(format!("{path}: wanted {want}, got {got}")),
    }
}

/// Integers compare exactly over 64 bits; by value only when one of the two is written as a float.
fn is_float(a: &Value, b: &Value) -> bool {
    a.is_f64() || b.is_f64()
}

/// The value at a dotted path; numbers index arrays.
pub fn at<'a>(value: &'a Value, dotted: &str) -> Option<&'a Value> {
    value.pointer(&format!("/{}", dotted.replace('.', "/")))
}
