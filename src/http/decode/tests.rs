//! The fast way against the library alone.

use proptest::prelude::*;

use super::{
    wire::{LoadQuery, Prompted, ReservationRequest, ReserveRequest, SelectRequest},
    *,
};
use crate::selection::worker;

/// What the fast way makes of `body` must be what the library makes of it. Returns whether it was taken.
fn agree<T: DeserializeOwned + Prompted + std::fmt::Debug>(body: &[u8]) -> bool {
    let Some(fast) = decode_fast::<T>(body) else { return false };
    let library = decode::<T>(body);
    assert_eq!(Ok(format!("{fast:?}")), library.map(|value| format!("{value:?}")), "{}", String::from_utf8_lossy(body));
    true
}

fn agree_all(body: &[u8]) -> bool {
    agree::<SelectRequest>(body)
        & agree::<ReserveRequest>(body)
        & agree::<ReservationRequest>(body)
        & agree::<LoadQuery>(body)
}

fn shape(body: &str) -> BodyError {
    decode_prompted::<SelectRequest>(body.as_bytes()).expect_err("refused")
}

#[test]
fn usual_requests_take_the_fast_way() {
    for body in [
        r#"{"selection_id":"a","token_ids":[1,2,3]}"#,
        r#" { "selection_id" : "a" , "token_ids" : [ 1 , 2 ] , "model_name":"m" } "#,
        r#"{"selection_id":"a","block_hashes":[-1],"sequence_hashes":[9223372036854775807],"isl_tokens":16}"#,
        r#"{"selection_id":"\u00e9\"]}","token_ids":null,"x":{"token_ids":[1.5]},"lora_name":null}"#,
        r#"{"selection_id":"a","token_ids":[]}trailing"#,
        r#"{"selection_id":"a","pinned_worker":[1,0],"affinity_target":{"worker_id":18446744073709551615}}"#,
    ] {
        assert!(agree_all(body.as_bytes()), "{body}");
    }
}

#[test]
fn arrays_land_in_the_prompt() {
    let body = br#"{"token_ids":[7, 8],"block_hashes":[-9],"sequence_hashes":[],"isl_tokens":4,"selection_id":"s"}"#;
    let request: SelectRequest = decode_prompted(body).expect("valid");
    assert_eq!(request.prompt.token_ids, Some(vec![7, 8]));
    assert_eq!(request.prompt.block_hashes, Some(vec![-9]));
    assert_eq!(request.prompt.sequence_hashes, Some(vec![]));
    assert_eq!(request.prompt.isl_tokens, Some(4));
    assert_eq!(request.selection_id.as_deref(), Some("s"));
}

#[test]
fn an_escaped_key_is_the_same_key() {
    let request: SelectRequest = decode_prompted(br#"{"token\u005fids":[1]}"#).expect("valid");
    assert_eq!(request.prompt.token_ids, Some(vec![1]));
    for body in [
        r#"{"token_ids":[1],"token\u005fids":[1]}"#,
        r#"{"token_ids":[1],"token_ids":null}"#,
        r#"{"token_ids":null,"token_ids":[1]}"#,
        r#"{"block_hashes":[1],"block_hashes":[1]}"#,
        r#"{"model_name":"a","token_ids":[1],"model_name":"a"}"#,
    ] {
        let BodyError::Shape(text) = shape(body) else { panic!("{body}: not a shape error") };
        assert!(text.starts_with("duplicate field") || text.contains(": duplicate field"), "{body}: {text}");
    }
}

#[test]
fn errors_have_the_class_and_text_of_the_library() {
    assert_eq!(
        shape(r#"{"model_name":"m","token_ids":[1.0]}"#),
        BodyError::Shape("invalid type: floating point `1.0`, expected u32 at line 1 column 36".to_owned())
    );
    assert_eq!(
        shape(r#"{"strict_priority":-1}"#),
        BodyError::Shape("strict_priority: invalid value: integer `-1`, expected u32 at line 1 column 21".to_owned())
    );
    assert_eq!(
        shape("{\"token_ids\":[1,]}"),
        BodyError::Syntax("token_ids: trailing comma at line 1 column 17".to_owned())
    );
    assert_eq!(shape(""), BodyError::Syntax("EOF while parsing a value at line 1 column 0".to_owned()));
    assert!(matches!(shape(r#"{"token_ids":[1],"x":1e999}"#), BodyError::Syntax(_)));
    assert!(matches!(shape(r#"{"token_ids":[1],"model_name":null}"#), BodyError::Shape(_)));
    assert!(matches!(shape("[]"), BodyError::Shape(_)));
    let nested = |depth: usize| format!("{{\"token_ids\":[1],\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(decode_prompted::<SelectRequest>(nested(126).as_bytes()).is_ok());
    for depth in [127, 10_000, 1_000_000] {
        assert!(matches!(shape(&nested(depth)), BodyError::Syntax(_)), "{depth} deep");
    }
}

#[test]
fn overrides_are_checked_while_decoding() {
    for (body, text) in [
        (r#"{"overlap_score_credit":-1}"#, "overlap_score_credit must be a finite, non-negative number"),
        (r#"{"overlap_score_weight":-1}"#, "prefill_load_scale must be finite and non-negative"),
        (r#"{"router_temperature":-0.1}"#, "router_temperature must be finite and non-negative"),
        (r#"{"shared_cache_multiplier":1.5}"#, "shared_cache_multiplier must be between 0 and 1"),
    ] {
        let BodyError::Shape(got) = shape(&format!("{{\"router_config_override\":{body}}}")) else { panic!("{body}") };
        assert!(got.starts_with(&format!("router_config_override: {text}")), "{got}");
    }
}

#[test]
fn weights_beyond_f32_stay_finite() {
    let body = br#"{"token_ids":[1],"routing_constraints":{"preferred_taints":{"a":1e39,"b":-1e39}}}"#;
    let request = decode_prompted::<SelectRequest>(body).expect("valid").into_core(false);
    let weights: Vec<f32> = request.steering.routing_constraints.preferred_taints.into_values().collect();
    assert_eq!(weights, [f32::MAX, f32::MIN]);
}

#[test]
fn a_worker_may_be_a_positional_array_of_the_fields_the_reference_has() {
    let worker: workers::WorkerRequest =
        decode(br#"[5,"m","g","http://w",null,{},null,16,0,1,null,null,null,null,[],{},null,null,null,null,{},null]"#)
            .expect("valid");
    assert_eq!((worker.worker_id, worker.block_size), (5, Some(16)));
    assert!(matches!(decode::<workers::WorkerRequest>(b"[5]"), Err(BodyError::Shape(_))));
    assert!(matches!(workers::patch(b"[]"), Err(BodyError::Shape(_))));
    assert!(matches!(decode::<workers::WorkerRequest>(br#"{"worker_id":1,"taints":null}"#), Err(BodyError::Shape(_))));
}

#[test]
fn a_workers_weight_beyond_f32_stays_finite_in_both_bodies() {
    let body = br#"{"worker_id":1,"kv_transfer_preferred_weight":-1e39}"#;
    let worker = worker::WorkerRequest::from(decode::<workers::WorkerRequest>(body).expect("valid"));
    assert_eq!(worker.fields.kv_transfer_preferred_weight, Some(f32::MIN));
    let patch = workers::patch(br#"{"kv_transfer_preferred_weight":1e39}"#).expect("valid");
    assert_eq!(patch.kv_transfer_preferred_weight, Some(f32::MAX));
}

#[test]
fn a_patch_may_be_a_positional_array_of_the_fields_the_reference_has() {
    let patch = workers::patch(
        br#"["http://w",null,{"0":"tcp://a:1"},null,16,null,2,null,null,null,true,["t"],{},null,null,0.5,null,{},null]"#,
    )
    .expect("valid");
    assert_eq!((patch.endpoint.as_deref(), patch.block_size, patch.is_eagle), (Some("http://w"), Some(16), Some(true)));
    assert_eq!((patch.data_parallel_size, patch.replay_endpoints, patch.worker_role), (Some(2), None, None));
    assert_eq!(patch.kv_events_endpoints.expect("given")[&0], "tcp://a:1");
    assert!(matches!(workers::patch(br#"["http://w"]"#), Err(BodyError::Shape(_))));
}

/// A JSON value with everything that matters to the splitter.
fn value(depth: u32) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("1e999".to_owned()),
        Just("\"a\\\"]}\\\\\"".to_owned()),
        Just("\"\\ud800\"".to_owned()),
        any::<i64>().prop_map(|v| v.to_string()),
        any::<u32>().prop_map(|v| v.to_string()),
        any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(|v| v.to_string()),
        proptest::collection::vec(any::<u32>(), 0..40).prop_map(|v| format!("{v:?}")),
        proptest::collection::vec(any::<i64>(), 0..40).prop_map(|v| format!("{v:?}").replace(' ', "")),
    ];
    leaf.prop_recursive(depth, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|v| format!("[{}]", v.join(" ,"))),
            proptest::collection::vec(inner, 0..3).prop_map(|v| format!(
                "{{{}}}",
                v.iter().map(|v| format!("\"token_ids\": {v}")).collect::<Vec<_>>().join(",")
            )),
        ]
    })
    .boxed()
}

fn key() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("token_ids"),
        Just("block_hashes"),
        Just("sequence_hashes"),
        Just("isl_tokens"),
        Just("model_name"),
        Just("selection_id"),
        Just("worker_id"),
        Just("unknown"),
        Just("token\\u005fids"),
        Just("advisory"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn built_bodies_decode_alike(
        members in proptest::collection::vec((key(), value(3)), 0..7),
        valid_id in any::<bool>(),
        tail in prop_oneof![Just(""), Just(" "), Just("x"), Just("{}")],
    ) {
        let mut text: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\" : {value}")).collect();
        if valid_id {
            text.push("\"selection_id\":\"i\"".to_owned());
        }
        agree_all(format!("{{{}}}{tail}", text.join(" , ")).as_bytes());
    }

    #[test]
    fn mutated_bodies_decode_alike(at in any::<prop::sample::Index>(), with in any::<u8>(), how in 0..3u8) {
        let mut body = br#"{"selection_id":"a","token_ids":[1, 22,333],"x":[{"y":"]"}],"block_hashes":[-1],"isl_tokens":4}"#.to_vec();
        let at = at.index(body.len());
        match how {
            0 => body[at] = with,
            1 => body.insert(at, with),
            _ => drop(body.remove(at)),
        }
        agree_all(&body);
    }
}
