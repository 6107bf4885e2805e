//! Messages there and back, and what is refused.

use std::{sync::Arc, time::Duration};

use super::{beacon::*, *};
use crate::selection::{
    PartitionKey, WorkerWithDpRank,
    replication::{Admission, BookingChange, BookingEvent, PrefillHint, SessionEvent},
    request::AffinityTarget,
    sessions::SessionVersion,
};

fn event(change: BookingChange) -> BookingEvent {
    BookingEvent {
        partition: PartitionKey::new("default", "default"),
        block_size: 16,
        selection_id: "req-1".into(),
        rank: WorkerWithDpRank::new(1, 0),
        lora_name: None,
        change,
    }
}

fn admitted(duration: Option<Duration>) -> BookingChange {
    BookingChange::Admitted(Admission {
        sequence: Arc::from([1, 2, u64::MAX]),
        track_prefill_tokens: true,
        expected_output_tokens: None,
        prefill: Some(PrefillHint { tokens: 48, duration }),
    })
}

#[test]
fn slot_messages_come_back_as_they_went() {
    let changes = [
        admitted(None),
        admitted(Some(Duration::new(3, 5))),
        BookingChange::Freed,
        BookingChange::PrefillCompleted,
        BookingChange::Admitted(Admission {
            sequence: Arc::from([]),
            track_prefill_tokens: false,
            expected_output_tokens: Some(u32::MAX),
            prefill: None,
        }),
    ];
    for change in changes {
        let sent = BookingEvent { lora_name: Some("ad".into()), ..event(change) };
        let frames = encode_slot(&sent, 77);
        assert_eq!(&*frames[0], SLOT_TOPIC);
        let received = decode_slot(&frames[1]).expect("decodes");
        assert_eq!((received.event, received.router_id), (sent, 77));
    }
}

#[test]
fn the_bytes_are_those_of_the_specification() {
    let frames = encode_slot(&event(BookingChange::Freed), 0x2d50_1731_fa5c_dc03);
    let mut expected = vec![0x84, 0xaa];
    expected.extend(b"model_name\xa7default\xadrouting_group\xa7default\xaablock_size\x10\xa5event\x85");
    expected.extend(b"\xaarequest_id\xa5req-1\xa6worker\x82\xa9worker_id\x01\xa7dp_rank\x00\xa4data\xa4Free");
    expected.extend(b"\xa9router_id\xcf\x2d\x50\x17\x31\xfa\x5c\xdc\x03\xa9lora_name\xc0");
    assert_eq!(&*frames[1], &expected[..]);
}

#[test]
fn lengths_that_lie_and_deep_nesting_do_no_harm() {
    for payload in [&b"\xdd\xff\xff\xff\xff"[..], b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b""] {
        assert!(decode_slot(payload).is_err());
        assert!(decode_session(payload).is_err());
        assert!(Envelope::decode(payload).is_err());
    }
    let deep = [0x91; 100_000];
    assert!(decode_slot(&deep).is_err());
    assert!(decode_session(&deep).is_err());
    let mut field = vec![0x84, 0xaa];
    field.extend(b"model_name");
    field.extend(deep);
    assert!(decode_slot(&field).is_err());
}

#[test]
fn sessions_come_back_and_need_no_rank() {
    let sent = SessionEvent {
        partition: PartitionKey::new("m", "g"),
        session_id: "s".into(),
        target: AffinityTarget { worker_id: 3, dp_rank: None },
        version: SessionVersion { sequence: 5, writer_id: 9 },
    };
    let frames = encode_session(&sent);
    assert_eq!(&*frames[0], SESSION_TOPIC);
    assert_eq!(decode_session(&frames[1]).expect("decodes"), sent);
    let array = rmp_serde::to_vec(&("m", "g", "s", 3, 0, 5, 9)).expect("encodes");
    assert!(decode_session(&array).is_err(), "arrays are refused");
}

#[test]
fn our_messages_take_unknown_fields_and_refuse_other_versions() {
    let sent = Envelope::beacon(7, Beacon { instance_id: "i".to_owned(), sequence: 4, ..Beacon::default() });
    assert_eq!(Envelope::decode(&sent.encode()[1]).expect("decodes"), sent);

    #[derive(serde::Serialize)]
    struct Later {
        version: u32,
        router_id: u64,
        something: Vec<u8>,
    }
    let later = |version| {
        let later = Later { version, router_id: 1, something: vec![1, 2] };
        Envelope::decode(&rmp_serde::to_vec_named(&later).expect("encodes"))
    };
    assert!(later(WIRE_VERSION).is_ok());
    assert!(matches!(later(2), Err(MeshDecodeError::Version(2))));
}
