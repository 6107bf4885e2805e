//! The `shadow:` section (ours): a second policy that is scored on live traffic, and the part of it that acts.

use std::{fmt, sync::Arc};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    DocumentError,
    node::{Cursor, Value},
};
use crate::selection::worker::WorkerRole;

const SHADOW_KEYS: [&str; 4] = ["aggregated", "prefill", "decode", "encode"];

/// A second policy by role of the partition; a role without one has no shadow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShadowConfig {
    /// For partitions of aggregated workers.
    pub aggregated: Option<ShadowPolicy>,
    /// For prefill partitions.
    pub prefill: Option<ShadowPolicy>,
    /// For decode partitions.
    pub decode: Option<ShadowPolicy>,
    /// For encode partitions.
    pub encode: Option<ShadowPolicy>,
}

/// A policy instance that is scored beside the one in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowPolicy {
    /// Name of a configured instance, or `default` for the built-in.
    pub instance: Arc<str>,
    /// Part of the requests that it decides.
    pub share: Share,
}

impl ShadowConfig {
    /// The shadow of a role.
    pub fn of(&self, role: WorkerRole) -> Option<&ShadowPolicy> {
        match role {
            WorkerRole::Aggregated => self.aggregated.as_ref(),
            WorkerRole::Prefill => self.prefill.as_ref(),
            WorkerRole::Decode => self.decode.as_ref(),
            WorkerRole::Encode => self.encode.as_ref(),
        }
    }
}

/// A part of all requests, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// No request.
    pub const NONE: Self = Self(0);

    const WHOLE: u32 = 1_000_000;

    /// From a fraction.
    ///
    /// # Errors
    /// `None` when it is not between 0 and 1.
    pub fn of_fraction(fraction: f64) -> Option<Self> {
        (0.0..=1.0).contains(&fraction).then(|| Self((fraction * f64::from(Self::WHOLE)).round() as u32))
    }

    /// The fraction, 0 to 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }

    /// Whether requests of `key` are in it: the session where there is one, so that it keeps one policy, else the id of
    /// the request. A key that is in a share is in every larger one.
    pub fn takes(self, key: &str) -> bool {
        // The high bits, scaled: the share of all keys is exact to a millionth.
        let point = (u128::from(xxh3_64(key.as_bytes())) * u128::from(Self::WHOLE)) >> 64;
        point < u128::from(self.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 10_000.0)
    }
}

/// Reads the section. `is_instance` tells configured instances.
pub(super) fn read(section: &Cursor<'_>, is_instance: impl Fn(&str) -> bool) -> Result<ShadowConfig, DocumentError> {
    let fields = section.fields(&SHADOW_KEYS)?;
    let policy = |role: &str| {
        fields.optional(role, |value| {
            let entry = value.fields(&["instance", "share"])?;
            let instance = entry.required("instance")?;
            let name = instance.text()?;
            if name != "default" && !is_instance(name) {
                return Err(instance.invalid(format!("shadow {role} {name:?} does not name a configured instance")));
            }
            let share = entry.optional("share", share)?.unwrap_or(Share::NONE);
            Ok(ShadowPolicy { instance: name.into(), share })
        })
    };
    let shadow = ShadowConfig {
        aggregated: policy("aggregated")?,
        prefill: policy("prefill")?,
        decode: policy("decode")?,
        encode: policy("encode")?,
    };
    if shadow == ShadowConfig::default() {
        return Err(section.invalid("shadow must name an instance for aggregated, prefill, decode, or encode"));
    }
    Ok(shadow)
}

/// `5%`, or the fraction 0.05.
fn share(value: &Cursor<'_>) -> Result<Share, DocumentError> {
    let fraction = match &value.node.value {
        Value::Text(text) => {
            text.strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok()).map(|p| p / 100.0)
        }
        _ => Some(value.number()?),
    };
    let out_of_range = || value.invalid("share must be a percentage from 0% to 100%, or a fraction from 0 to 1");
    fraction.and_then(Share::of_fraction).ok_or_else(out_of_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_takes_its_part_of_the_keys_and_grows_around_it() {
        let part = |share: Share| (0..20_000).filter(|key| share.takes(&format!("session-{key}"))).count();
        assert_eq!(part(Share::NONE), 0);
        assert_eq!(part(Share::of_fraction(1.0).unwrap()), 20_000);
        let five = Share::of_fraction(0.05).unwrap();
        assert!((800..1200).contains(&part(five)), "{}", part(five));
        let ten = Share::of_fraction(0.1).unwrap();
        assert!((0..20_000).all(|key| !five.takes(&key.to_string()) || ten.takes(&key.to_string())));
        assert_eq!(five.to_string(), "5%");
        assert_eq!(Share::of_fraction(0.000_5).unwrap().to_string(), "0.05%");
        assert_eq!(Share::of_fraction(f64::NAN), None);
    }
}
