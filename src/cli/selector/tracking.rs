//! Tracking-hash options: algorithm, key file, key id, and the rules between them (spec sequences 5.5).
//!
//! The key never reaches a log line or an error, nor does the path it was read from.

use std::io::Read;

use zeroize::Zeroizing;

use crate::selection::config::TrackingHash;

const PUBLIC: &str = "public-xxh3-v1";
const KEYED: &str = "keyed-xxh3-v1";

/// The algorithm, before the key is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `public-xxh3-v1`
    Public,
    /// `keyed-xxh3-v1`
    Keyed,
}

impl Algorithm {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Public => PUBLIC,
            Self::Keyed => KEYED,
        }
    }

    /// Reads the exact word.
    ///
    /// # Errors
    /// The text the reference prints.
    pub fn parse(word: &str) -> Result<Self, String> {
        match word {
            PUBLIC => Ok(Self::Public),
            KEYED => Ok(Self::Keyed),
            other => Err(format!("router_tracking_hash must be {PUBLIC} or {KEYED}, got {other:?}")),
        }
    }
}

/// Puts the three settings together and reads the key.
///
/// # Errors
/// The texts of spec sequences 5.5.
pub fn resolve(algorithm: Algorithm, key_file: Option<&str>, key_id: Option<String>) -> Result<TrackingHash, String> {
    match algorithm {
        Algorithm::Public if key_file.is_some() || key_id.is_some() => {
            Err(format!("router tracking key options require router_tracking_hash={KEYED}"))
        }
        Algorithm::Public => Ok(TrackingHash::PublicXxh3V1),
        Algorithm::Keyed => {
            let file = key_file.ok_or_else(|| format!("{KEYED} requires router_tracking_key_file"))?;
            let key_id = key_id
                .filter(|id| !id.is_empty() && id.trim() == id)
                .ok_or_else(|| format!("{KEYED} requires a nonempty router_tracking_key_id"))?;
            Ok(TrackingHash::KeyedXxh3V1 { key: read_key(file)?, key_id })
        }
    }
}

fn read_key(path: &str) -> Result<Zeroizing<[u8; 32]>, String> {
    let failed = |_| "failed to read router tracking key file".to_owned();
    let mut file = std::fs::File::open(path).map_err(failed)?;
    // The size in the error is the file's, but no more than the key is ever held.
    let mut key = Zeroizing::new([0_u8; 32]);
    let mut filled = 0;
    while filled < key.len() {
        match file.read(&mut key[filled..]).map_err(failed)? {
            0 => return Err(wrong_length(filled as u64)),
            n => filled += n,
        }
    }
    match std::io::copy(&mut file.take(MAX_COUNTED), &mut std::io::sink()).map_err(failed)? {
        0 => Ok(key),
        more => Err(wrong_length(more.saturating_add(32))),
    }
}

/// Bytes past the key that are counted for the error, so that a device file ends.
const MAX_COUNTED: u64 = 1 << 20;

fn wrong_length(found: u64) -> String {
    format!("router tracking key file must contain exactly 32 raw bytes; found {found}")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn key_file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.flush().unwrap();
        file
    }

    fn keyed(bytes: &[u8], id: &str) -> Result<TrackingHash, String> {
        let file = key_file(bytes);
        resolve(Algorithm::Keyed, file.path().to_str(), Some(id.to_owned()))
    }

    #[test]
    fn a_key_is_32_raw_bytes() {
        let Ok(TrackingHash::KeyedXxh3V1 { key, key_id }) = keyed(&[7; 32], "a b") else { panic!("refused") };
        assert_eq!((*key, key_id.as_str()), ([7; 32], "a b"));
        for (length, found) in [(0, "found 0"), (31, "found 31"), (33, "found 33"), (64, "found 64")] {
            let error = keyed(&vec![7; length], "a").unwrap_err();
            assert_eq!(error, format!("router tracking key file must contain exactly 32 raw bytes; {found}"));
        }
    }

    #[test]
    fn ids_are_not_empty_and_have_no_outer_blanks() {
        for id in ["", " a", "a\n", "\ta", " "] {
            let error = keyed(&[7; 32], id).unwrap_err();
            assert_eq!(error, "keyed-xxh3-v1 requires a nonempty router_tracking_key_id", "{id:?}");
        }
    }

    #[test]
    fn the_path_is_never_printed() {
        for path in ["/nonexistent/secret-name", "/"] {
            let error = resolve(Algorithm::Keyed, Some(path), Some("a".to_owned())).unwrap_err();
            assert_eq!(error, "failed to read router tracking key file");
        }
    }

    #[test]
    fn the_file_is_asked_for_before_the_id() {
        assert_eq!(
            resolve(Algorithm::Keyed, None, None).unwrap_err(),
            "keyed-xxh3-v1 requires router_tracking_key_file"
        );
    }

    #[test]
    fn key_options_need_the_keyed_algorithm() {
        for (file, id) in [(Some("x"), None), (None, Some(String::new()))] {
            assert_eq!(
                resolve(Algorithm::Public, file, id).unwrap_err(),
                "router tracking key options require router_tracking_hash=keyed-xxh3-v1"
            );
        }
    }

    #[test]
    fn words_are_exact() {
        assert_eq!(Algorithm::parse(PUBLIC), Ok(Algorithm::Public));
        assert_eq!(
            Algorithm::parse("").unwrap_err(),
            "router_tracking_hash must be public-xxh3-v1 or keyed-xxh3-v1, got \"\""
        );
    }
}
