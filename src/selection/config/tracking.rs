//! How tracking hashes are configured: algorithm, key and key epoch, and the rules between them (spec sequences 5.5).

use std::{
    io,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::selection::{error::ConfigError, hash::TrackingHash};

/// Name of an algorithm, as settings spell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrackingAlgorithm {
    /// `public-xxh3-v1`.
    #[default]
    PublicXxh3V1,
    /// `keyed-xxh3-v1`.
    KeyedXxh3V1,
}

impl FromStr for TrackingAlgorithm {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "public-xxh3-v1" => Ok(Self::PublicXxh3V1),
            "keyed-xxh3-v1" => Ok(Self::KeyedXxh3V1),
            _ => {
                Err(ConfigError(format!("router_tracking_hash must be public-xxh3-v1 or keyed-xxh3-v1, got {text:?}")))
            }
        }
    }
}

/// Tracking settings before the key is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackingOptions {
    /// Which algorithm.
    pub algorithm: TrackingAlgorithm,
    /// File of exactly 32 raw bytes.
    pub key_file: Option<PathBuf>,
    /// Key epoch.
    pub key_id: Option<String>,
}

impl TrackingOptions {
    /// Checks the combination and takes the key from `read`.
    ///
    /// # Errors
    /// The first violation, in the words of spec sequences 5.5; the path is never part of a text.
    pub fn resolve(
        &self,
        read: impl FnOnce(&Path) -> io::Result<zeroize::Zeroizing<Vec<u8>>>,
    ) -> Result<TrackingHash, ConfigError> {
        let error = |text: &str| ConfigError(text.to_owned());
        if self.algorithm == TrackingAlgorithm::PublicXxh3V1 {
            return match (&self.key_file, &self.key_id) {
                (None, None) => Ok(TrackingHash::PublicXxh3V1),
                _ => Err(error("router tracking key options require router_tracking_hash=keyed-xxh3-v1")),
            };
        }
        let file = self.key_file.as_deref().ok_or_else(|| error("keyed-xxh3-v1 requires router_tracking_key_file"))?;
        let key_id = check_key_id(self.key_id.as_deref())?.to_owned();
        let bytes = read(file).map_err(|_| error("failed to read router tracking key file"))?;
        let mut key = zeroize::Zeroizing::new([0; 32]);
        if bytes.len() != key.len() {
            return Err(ConfigError(format!(
                "router tracking key file must contain exactly 32 raw bytes; found {}",
                bytes.len()
            )));
        }
        key.copy_from_slice(&bytes);
        Ok(TrackingHash::KeyedXxh3V1 { key, key_id })
    }
}

/// A key epoch is not empty and has no surrounding white space.
pub(super) fn check_key_id(key_id: Option<&str>) -> Result<&str, ConfigError> {
    match key_id {
        Some(id) if !id.is_empty() && id.trim() == id => Ok(id),
        _ => Err(ConfigError("keyed-xxh3-v1 requires a nonempty router_tracking_key_id".to_owned())),
    }
}
