//! Ranges of settings, and the words of their refusal.

use super::*;

fn text(change: impl FnOnce(&mut SelectionConfig)) -> String {
    let mut config = SelectionConfig::default();
    change(&mut config);
    config.validate().map_or_else(|error| error.to_string(), |()| "valid".to_owned())
}

#[test]
fn defaults_are_valid() {
    assert_eq!(text(|_| {}), "valid");
}

#[test]
fn violations_have_the_specified_texts() {
    assert_eq!(text(|c| c.overlap_score_credit = -1.0), "overlap_score_credit must be a finite, non-negative number");
    assert_eq!(
        text(|c| c.overlap_score_credit = f64::NAN),
        "overlap_score_credit must be a finite, non-negative number"
    );
    assert_eq!(
        text(|c| c.overlap_score_credit_decay = f64::INFINITY),
        "overlap_score_credit_decay must be finite and non-negative"
    );
    assert_eq!(text(|c| c.prefill_load_scale = -0.5), "prefill_load_scale must be finite and non-negative");
    assert_eq!(
        text(|c| c.decode_active_request_weight = f64::NAN),
        "decode_active_request_weight must be finite and non-negative"
    );
    assert_eq!(text(|c| c.router_temperature = -1.0), "router_temperature must be finite and non-negative");
    assert_eq!(text(|c| c.host_cache_hit_weight = 1.5), "host_cache_hit_weight must be between 0 and 1");
    assert_eq!(text(|c| c.disk_cache_hit_weight = f64::NAN), "disk_cache_hit_weight must be between 0 and 1");
    assert_eq!(
        text(|c| c.queue_threshold = Some(f64::NAN)),
        "router_queue_threshold must be greater than or equal to 0"
    );
    assert_eq!(text(|c| c.queue_threshold = Some(f64::INFINITY)), "valid");
    assert_eq!(
        text(|c| c.decode_busy_threshold = Some(-0.1)),
        "conditional_disagg_decode_busy_threshold must be greater than or equal to 0"
    );
    assert!(
        text(|c| {
            c.use_kv_events = false;
            c.predicted_ttl = Some(Duration::from_secs(1));
        })
        .starts_with("router_predicted_ttl_secs requires use_kv_events=true; ")
    );
    assert_eq!(
        text(|c| c.approximate_cache_policy = ApproximateCachePolicy::Lru),
        "router_approximate_cache_policy=lru requires use_kv_events=false; the local side indexer is TTL-only"
    );
    for ttl in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(31_536_001)] {
        assert_eq!(
            text(|c| c.session_affinity_ttl = Some(ttl)),
            "session_affinity_ttl_secs must be between 1 and 31536000"
        );
    }
    assert_eq!(text(|c| c.session_affinity_ttl = Some(Duration::from_secs(31_536_000))), "valid");
}

#[test]
fn legacy_weight_sets_the_scale_and_zero_also_the_credit() {
    let mut config = SelectionConfig::default();
    config.set_overlap_score_weight(2.0);
    assert_eq!((config.prefill_load_scale, config.overlap_score_credit), (2.0, 1.0));
    config.set_overlap_score_weight(0.0);
    assert_eq!((config.prefill_load_scale, config.overlap_score_credit), (0.0, 0.0));
}

#[test]
fn override_ranges() {
    let text = |over: RouterConfigOverride| over.validate().map_or_else(|e| e.to_string(), |()| "valid".to_owned());
    let base = RouterConfigOverride::default;
    assert_eq!(text(base()), "valid");
    assert_eq!(
        text(RouterConfigOverride { overlap_score_credit: Some(f64::NAN), ..base() }),
        "overlap_score_credit must be a finite, non-negative number"
    );
    assert_eq!(
        text(RouterConfigOverride { overlap_score_weight: Some(-2.0), ..base() }),
        "prefill_load_scale must be finite and non-negative"
    );
    assert_eq!(
        text(RouterConfigOverride { shared_cache_multiplier: Some(1.5), ..base() }),
        "shared_cache_multiplier must be between 0 and 1"
    );
}

#[test]
fn words_and_numbers() {
    for word in ["1", "TRUE", " yes ", "On"] {
        assert_eq!(parse_bool(word), Some(true), "{word}");
    }
    for word in ["0", "false", "NO", "off\n"] {
        assert_eq!(parse_bool(word), Some(false), "{word}");
    }
    for word in ["", "maybe", "2", "truee"] {
        assert_eq!(parse_bool(word), None, "{word}");
    }
    assert_eq!(seconds("x", 1.5), Ok(Duration::from_millis(1500)));
    assert_eq!(seconds("x", 1e300), Ok(Duration::MAX));
    assert_eq!(seconds("x", f64::NAN), Err(ConfigError("x must be greater than or equal to 0".to_owned())));
    assert_eq!(seconds("x", -1.0), Err(ConfigError("x must be greater than or equal to 0".to_owned())));
    for text in ["", "0", "-1", "1.5", "x"] {
        assert_eq!(active_request_expiry(text), Duration::from_secs(300), "{text}");
    }
    assert_eq!(active_request_expiry("2"), Duration::from_secs(2));
    assert_eq!(
        "lifo".parse::<QueuePolicy>(),
        Err(ConfigError("unknown queue policy: \"lifo\", expected 'fcfs', 'lcfs', or 'wspt'".to_owned()))
    );
    assert_eq!(
        "x".parse::<ApproximateCachePolicy>(),
        Err(ConfigError("unknown approximate cache policy \"x\", expected 'ttl' or 'lru'".to_owned()))
    );
    assert_eq!(
        "md5".parse::<TrackingAlgorithm>(),
        Err(ConfigError("router_tracking_hash must be public-xxh3-v1 or keyed-xxh3-v1, got \"md5\"".to_owned()))
    );
}

#[test]
fn tracking_keys() {
    let options = |algorithm, file: Option<&str>, id: Option<&str>| TrackingOptions {
        algorithm,
        key_file: file.map(Into::into),
        key_id: id.map(str::to_owned),
    };
    let outcome = |options: TrackingOptions, bytes: std::io::Result<Vec<u8>>| match options
        .resolve(|_| bytes.map(zeroize::Zeroizing::new))
    {
        Ok(hash) => format!("{hash:?}"),
        Err(error) => error.to_string(),
    };
    let keyed = TrackingAlgorithm::KeyedXxh3V1;
    let public = TrackingAlgorithm::PublicXxh3V1;
    let key = || Ok(vec![0x5a; 32]);
    assert_eq!(outcome(options(public, None, None), key()), "public-xxh3-v1");
    let misplaced = "router tracking key options require router_tracking_hash=keyed-xxh3-v1";
    assert_eq!(outcome(options(public, Some("/k"), None), key()), misplaced);
    assert_eq!(outcome(options(public, None, Some("a")), key()), misplaced);
    assert_eq!(outcome(options(keyed, None, None), key()), "keyed-xxh3-v1 requires router_tracking_key_file");
    for id in [None, Some(""), Some(" a"), Some("a\n")] {
        assert_eq!(
            outcome(options(keyed, Some("/k"), id), key()),
            "keyed-xxh3-v1 requires a nonempty router_tracking_key_id"
        );
    }
    assert_eq!(
        outcome(options(keyed, Some("/k"), Some("a b")), Ok(vec![0; 33])),
        "router tracking key file must contain exactly 32 raw bytes; found 33"
    );
    assert_eq!(
        outcome(options(keyed, Some("/secret"), Some("a")), Err(std::io::ErrorKind::NotFound.into())),
        "failed to read router tracking key file"
    );
    assert_eq!(outcome(options(keyed, Some("/k"), Some("a b")), key()), "keyed-xxh3-v1(key_id=a b, key=redacted)");
}
