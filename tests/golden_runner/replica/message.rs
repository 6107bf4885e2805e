//! MessagePack bodies of injected and published frames, and the macros in them.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmpv::Value as Message;
use serde_json::Value;

/// A value with its maps in the order they have; integers in their shortest form.
pub fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, message).unwrap();
    bytes
}

/// One value, nothing behind it.
pub fn decode(mut bytes: &[u8]) -> Result<Message, String> {
    let message = rmpv::decode::read_value(&mut bytes).map_err(|e| format!("no MessagePack: {e}"))?;
    if bytes.is_empty() { Ok(message) } else { Err(format!("{} bytes behind the value", bytes.len())) }
}

/// For comparisons, which do not look at the order of members.
pub fn to_json(message: &Message) -> Result<Value, String> {
    serde_json::to_value(message).map_err(|e| e.to_string())
}

pub fn from_json(value: &Value) -> Message {
    rmpv::ext::to_value(value).unwrap()
}

/// `{"$var": name}`, `{"$add": [name, n]}`, `{"$range": [from, to]}`, `{"$repeat": [item, times]}`.
pub fn macro_of(value: &Value, variables: &BTreeMap<String, Value>) -> Option<Value> {
    let members = value.as_object().filter(|m| m.len() == 1)?;
    let (name, argument) = members.iter().next()?;
    Some(match name.as_str() {
        "$var" => variables[argument.as_str().unwrap()].clone(),
        "$add" => {
            let sum = i128::from(variables[argument[0].as_str().unwrap()].as_u64().unwrap())
                + i128::from(argument[1].as_i64().unwrap());
            u64::try_from(sum).unwrap().into()
        }
        "$range" => (argument[0].as_u64().unwrap()..argument[1].as_u64().unwrap()).collect::<Vec<_>>().into(),
        "$repeat" => {
            let times = argument[1].as_u64().unwrap() as usize;
            match &argument[0] {
                Value::String(text) => text.repeat(times).into(),
                Value::Array(items) => items.iter().cycle().take(items.len() * times).cloned().collect(),
                other => panic!("cannot repeat {other}"),
            }
        }
        _ => return None,
    })
}

/// Replaces macros and `${name}` in a message; `{"$b64": text}` is a byte string.
pub fn fill(message: &Message, variables: &BTreeMap<String, Value>) -> Result<Message, String> {
    Ok(match message {
        Message::Map(members) => {
            let json = to_json(message)?;
            if let Some(value) = macro_of(&json, variables) {
                from_json(&value)
            } else if let Some(text) = json["$b64"].as_str() {
                Message::Binary(STANDARD.decode(text).map_err(|e| e.to_string())?)
            } else {
                let filled =
                    members.iter().map(|(k, v)| Ok((k.clone(), fill(v, variables)?))).collect::<Result<_, String>>()?;
                Message::Map(filled)
            }
        }
        Message::Array(items) => Message::Array(items.iter().map(|v| fill(v, variables)).collect::<Result<_, _>>()?),
        Message::String(text) => {
            let mut text = text.as_str().unwrap_or_default().to_owned();
            for (name, value) in variables {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text = text.replace(&format!("${{{name}}}"), &value);
            }
            text.into()
        }
        other => other.clone(),
    })
}
