//! YAML as a tree in which every value knows where it stands.
//!
//! The sections read it with [`Cursor`]s, so that whatever they refuse is told with line, column and field. Scalars have
//! the types of the YAML 1.2 core schema: `yes` is a string, `.nan` a number.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::{DocumentError, ErrorKind, Place};

/// Levels of nesting that are read.
const MAX_DEPTH: usize = 64;

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub at: Position,
    pub value: Value,
}

/// Line and column, from 1; 0 where they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub line: u64,
    pub column: u64,
}

impl From<serde_saphyr::Location> for Position {
    fn from(at: serde_saphyr::Location) -> Self {
        Self { line: at.line(), column: at.column() }
    }
}

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Boolean(bool),
    Unsigned(u64),
    /// Always negative.
    Signed(i64),
    /// Finite or not.
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the text; keys are unique.
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub at: Position,
    pub name: String,
}

/// Reads a text.
///
/// # Errors
/// It is no YAML.
pub(super) fn read(text: &str) -> Result<Node, DocumentError> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let error = error.without_snippet();
        let at = error.location().map(|at| (at.line(), at.column()));
        let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
        // The renderer ends with the place, which is shown apart.
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason).to_owned();
        let (line, column) = at.unwrap_or_default();
        DocumentError { kind: ErrorKind::Parse, place: Place { line, column, field: String::new() }, reason }
    })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { at: spanned.referenced.into(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or(Value::Signed(value), Value::Unsigned))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or(Value::Float(value as f64), Value::Unsigned))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        match (u64::try_from(value), i64::try_from(value)) {
            (Ok(value), _) => Ok(Value::Unsigned(value)),
            (_, Ok(value)) => Ok(Value::Signed(value)),
            _ => Ok(Value::Float(value as f64)),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            map.push((Key { at: key.referenced.into(), name: key.value }, entries.next_value()?));
        }
        Ok(Value::Map(map))
    }
}

/// A node and the way to it.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    pub node: &'a Node,
    /// As `policy_classes[0].quantum`; empty for the document.
    pub path: String,
}

impl<'a> Cursor<'a> {
    /// The whole document.
    pub fn root(node: &'a Node) -> Self {
        Self { node, path: String::new() }
    }

    pub fn place(&self) -> Place {
        Place { line: self.node.at.line, column: self.node.at.column, field: self.path.clone() }
    }

    /// A value that cannot be meant.
    pub fn invalid(&self, reason: impl Into<String>) -> DocumentError {
        DocumentError { kind: ErrorKind::Invalid, place: self.place(), reason: reason.into() }
    }

    /// A value that cannot be read.
    pub fn unreadable(&self, reason: impl Into<String>) -> DocumentError {
        DocumentError { kind: ErrorKind::Parse, place: self.place(), reason: reason.into() }
    }

    fn of_type(&self, expected: &str) -> DocumentError {
        let found = match &self.node.value {
            Value::Null => "null".to_owned(),
            Value::Boolean(value) => format!("boolean `{value}`"),
            Value::Unsigned(value) => format!("integer `{value}`"),
            Value::Signed(value) => format!("integer `{value}`"),
            Value::Float(value) => format!("floating point `{value}`"),
            Value::Text(value) => format!("string {value:?}"),
            Value::List(_) => "sequence".to_owned(),
            Value::Map(_) => "map".to_owned(),
        };
        self.unreadable(format!("invalid type: {found}, expected {expected}"))
    }

    pub fn is_null(&self) -> bool {
        matches!(self.node.value, Value::Null)
    }

    pub fn boolean(&self) -> Result<bool, DocumentError> {
        match self.node.value {
            Value::Boolean(value) => Ok(value),
            _ => Err(self.of_type("a boolean")),
        }
    }

    /// A number, finite or not.
    pub fn number(&self) -> Result<f64, DocumentError> {
        match self.node.value {
            Value::Float(value) => Ok(value),
            Value::Unsigned(value) => Ok(value as f64),
            Value::Signed(value) => Ok(value as f64),
            _ => Err(self.of_type("a number")),
        }
    }

    pub fn count(&self) -> Result<u64, DocumentError> {
        match self.node.value {
            Value::Unsigned(value) => Ok(value),
            _ => Err(self.of_type("an integer that is not negative")),
        }
    }

    pub fn text(&self) -> Result<&'a str, DocumentError> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.of_type("a string")),
        }
    }

    pub fn items(&self) -> Result<Vec<Cursor<'a>>, DocumentError> {
        let Value::List(items) = &self.node.value else { return Err(self.of_type("a sequence")) };
        let item = |(at, node)| Cursor { node, path: format!("{}[{at}]", self.path) };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// All entries of a mapping, by key.
    pub fn entries(&self) -> Result<Vec<(&'a Key, Cursor<'a>)>, DocumentError> {
        let Value::Map(entries) = &self.node.value else { return Err(self.of_type("a map")) };
        Ok(entries.iter().map(|(key, node)| (key, Cursor { node, path: self.below(&key.name) })).collect())
    }

    /// The entries of a mapping that has no other keys than `names`.
    pub fn fields(&self, names: &[&str]) -> Result<Fields<'a>, DocumentError> {
        let entries = self.entries()?;
        if let Some((key, _)) = entries.iter().find(|(key, _)| !names.contains(&&*key.name)) {
            let reason = format!("unknown field `{}`, expected {}", key.name, one_of(names));
            let place = Place { line: key.at.line, column: key.at.column, field: self.path.clone() };
            return Err(DocumentError { kind: ErrorKind::Parse, place, reason });
        }
        Ok(Fields { whole: self.clone(), entries })
    }

    fn below(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// Entries of a mapping with known keys.
pub(super) struct Fields<'a> {
    pub whole: Cursor<'a>,
    entries: Vec<(&'a Key, Cursor<'a>)>,
}

impl<'a> Fields<'a> {
    /// The value of `name`, `null` included.
    pub fn get(&self, name: &str) -> Option<&Cursor<'a>> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, value)| value)
    }

    /// The value of `name`; `null` counts as not given.
    pub fn given(&self, name: &str) -> Option<&Cursor<'a>> {
        self.get(name).filter(|value| !value.is_null())
    }

    pub fn required(&self, name: &str) -> Result<&Cursor<'a>, DocumentError> {
        self.get(name).ok_or_else(|| self.whole.unreadable(format!("missing field `{name}`")))
    }

    /// What `read` makes of the value of `name`, when it is given.
    pub fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Cursor<'a>) -> Result<T, DocumentError>,
    ) -> Result<Option<T>, DocumentError> {
        self.given(name).map(read).transpose()
    }
}

/// Names as serde lists them.
fn one_of(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match &quoted[..] {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [one, other] => format!("{one} or {other}"),
        many => format!("one of {}", many.join(", ")),
    }
}
