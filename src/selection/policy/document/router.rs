//! The `router:` section: process settings that the document decides over flags and environment (spec scheduling 1.5).

use super::{
    DocumentError,
    node::{Cursor, Value},
};

/// A type that a setting can have.
trait Setting: Sized {
    fn read(value: &Cursor<'_>) -> Result<Self, DocumentError>;
}

impl Setting for bool {
    fn read(value: &Cursor<'_>) -> Result<Self, DocumentError> {
        value.boolean()
    }
}

impl Setting for f64 {
    fn read(value: &Cursor<'_>) -> Result<Self, DocumentError> {
        value.number()
    }
}

impl Setting for u64 {
    fn read(value: &Cursor<'_>) -> Result<Self, DocumentError> {
        value.count()
    }
}

impl Setting for String {
    fn read(value: &Cursor<'_>) -> Result<Self, DocumentError> {
        value.text().map(str::to_owned)
    }
}

/// `null` takes the value away that a flag or the environment gave.
impl<T: Setting> Setting for Option<T> {
    fn read(value: &Cursor<'_>) -> Result<Self, DocumentError> {
        if matches!(value.node.value, Value::Null) { Ok(None) } else { T::read(value).map(Some) }
    }
}

macro_rules! router_settings {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// The 20 settings of the `router:` section. `None` leaves a setting to flag, environment and default; words and
        /// ranges are checked where the settings are put together.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct RouterSettings {
            $($(#[$doc])* pub $name: Option<$kind>,)*
        }

        impl RouterSettings {
            /// Names of all settings.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Reads the section.
            pub(super) fn read(section: &Cursor<'_>) -> Result<Self, DocumentError> {
                let mut settings = Self::default();
                for (key, value) in section.entries()? {
                    match &*key.name {
                        $(stringify!($name) => settings.$name = Some(Setting::read(&value)?),)*
                        other => return Err(value.invalid(format!("unknown router setting: {other}"))),
                    }
                }
                Ok(settings)
            }

            /// These, and those of `base` where nothing is set.
            #[must_use]
            pub fn or(&self, base: &Self) -> Self {
                Self { $($name: self.$name.clone().or_else(|| base.$name.clone()),)* }
            }

            /// The first setting that differs, with the two values as text.
            pub fn first_difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
                $(if self.$name != other.$name {
                    return Some((stringify!($name), shown(&self.$name), shown(&other.$name)));
                })*
                None
            }

            /// Name and value of every setting that is set, in the order of [`Self::NAMES`].
            pub fn set(&self) -> Vec<(&'static str, String)> {
                let mut set = Vec::new();
                $(if self.$name.is_some() {
                    set.push((stringify!($name), shown(&self.$name)));
                })*
                set
            }
        }
    };
}

router_settings! {
    /// Credit a block in host memory, 0 to 1.
    host_cache_hit_weight: f64,
    /// Credit a block on disk or remote, 0 to 1.
    disk_cache_hit_weight: f64,
    /// Caches are learnt from KV events.
    use_kv_events: bool,
    /// Acts in the reference's frontend.
    router_replica_sync: bool,
    /// Acts in the reference's frontend.
    router_track_active_blocks: bool,
    /// Acts in the reference's frontend; needs `router_track_active_blocks`.
    router_track_output_blocks: bool,
    /// Equal prompts share active blocks.
    router_assume_kv_reuse: bool,
    /// Prompts count as prefill load.
    router_track_prefill_tokens: bool,
    /// `public-xxh3-v1` or `keyed-xxh3-v1`.
    router_tracking_hash: String,
    /// File of 32 raw bytes.
    router_tracking_key_file: Option<String>,
    /// Name of the key's epoch.
    router_tracking_key_id: Option<String>,
    /// `none` or `ais`.
    router_prefill_load_model: String,
    /// Life of a predicted block without KV events, in seconds.
    router_ttl_secs: f64,
    /// `ttl` or `lru`.
    router_approximate_cache_policy: String,
    /// Acts in the reference's frontend; at least 1.
    router_event_threads: u64,
    /// Acts in the reference's frontend; excludes `serve_indexer`.
    use_remote_indexer: bool,
    /// Acts in the reference's frontend.
    serve_indexer: bool,
    /// Acts in the reference's frontend; needs `use_kv_events`.
    enable_session_prefix_index: bool,
    /// `none` or `hicache`.
    shared_cache_type: String,
    /// Life of a block predicted beside KV events, in seconds.
    router_predicted_ttl_secs: Option<f64>,
}

/// A value as the document would spell it.
fn shown<T: Shown>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "unset".to_owned(), Shown::show)
}

trait Shown {
    fn show(&self) -> String;
}

macro_rules! shown_by_display {
    ($($kind:ty),*) => {
        $(impl Shown for $kind {
            fn show(&self) -> String {
                self.to_string()
            }
        })*
    };
}

shown_by_display!(bool, f64, u64, String);

impl<T: Shown> Shown for Option<T> {
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "null".to_owned(), Shown::show)
    }
}

/// The setting that promises an index to others, if one is on.
pub fn index_promise(settings: &RouterSettings) -> Option<&'static str> {
    [("serve_indexer", settings.serve_indexer), ("enable_session_prefix_index", settings.enable_session_prefix_index)]
        .into_iter()
        .find_map(|(name, value)| (value == Some(true)).then_some(name))
}

/// What does not go together, whichever of document, flag and environment said it.
///
/// # Errors
/// The text of spec scheduling 1.2.
pub fn check_combination(settings: &RouterSettings) -> Result<(), String> {
    let on = |value: Option<bool>| value == Some(true);
    let off = |value: Option<bool>| value == Some(false);
    if on(settings.router_track_output_blocks) && off(settings.router_track_active_blocks) {
        return Err("router_track_output_blocks requires router_track_active_blocks=true".to_owned());
    }
    if on(settings.use_remote_indexer) && on(settings.serve_indexer) {
        return Err("use_remote_indexer and serve_indexer are mutually exclusive".to_owned());
    }
    if on(settings.enable_session_prefix_index) && off(settings.use_kv_events) {
        return Err("enable_session_prefix_index requires use_kv_events=true".to_owned());
    }
    if settings.router_event_threads == Some(0) {
        return Err("router_event_threads must be at least 1".to_owned());
    }
    match settings.shared_cache_type.as_deref() {
        None | Some("none" | "hicache") => {}
        Some(other) => return Err(format!("unknown shared_cache_type: {other:?}, expected 'none' or 'hicache'")),
    }
    match settings.router_prefill_load_model.as_deref() {
        None | Some("none") => Ok(()),
        Some("ais" | "aic") if off(settings.router_track_prefill_tokens) => {
            Err("router_prefill_load_model requires router_track_prefill_tokens=true".to_owned())
        }
        Some("ais" | "aic") => Ok(()),
        Some(other) => Err(format!("unknown prefill load model: {other:?}, expected 'none' or 'ais'")),
    }
}
