//! Types that both kinds use.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Names an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Names one key of a Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyReference {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key within it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A port by number, or by the name it has in the Service or the pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum PortReference {
    /// Number, 1 to 65535.
    Number(u16),
    /// Name.
    Name(String),
}

impl JsonSchema for PortReference {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PortReference".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? self >= 1 && self <= 65535 : self.matches('^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$')",
                "message": "a port is a number from 1 to 65535, or the name of one (at most 15 lower-case letters, digits and dashes)"
            }]
        })
    }
}

/// A number or a percentage, as Kubernetes writes it.
pub fn int_or_percent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 : self.matches('^[0-9]{1,3}%$')",
            "message": "a number of pods, or a percentage such as 50%"
        }]
    })
}

/// Any object; the apiserver keeps what is in it.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of any objects.
pub fn any_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } })
}
