//! Bookings on the wire (spec sequences 2.3 and 2.4).

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Message, SLOT_TOPIC, hashes, message};
use crate::selection::{
    PartitionKey, WorkerWithDpRank,
    replication::{Admission, BookingChange, BookingEvent, PrefillHint, RouterId},
};

/// A decoded slot message.
#[derive(Debug)]
pub(in crate::mesh) struct SlotMessage {
    pub(in crate::mesh) event: BookingEvent,
    /// Who published it.
    pub(in crate::mesh) router_id: RouterId,
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    model_name: Cow<'a, str>,
    routing_group: Cow<'a, str>,
    block_size: u32,
    event: Event<'a>,
}

#[derive(Serialize, Deserialize)]
struct Event<'a> {
    request_id: Cow<'a, str>,
    worker: Worker,
    data: Data<'a>,
    router_id: u64,
    #[serde(default)]
    lora_name: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
struct Worker {
    worker_id: u64,
    dp_rank: u32,
}

#[derive(Serialize, Deserialize)]
enum Data<'a> {
    AddRequest {
        #[serde(default, deserialize_with = "hashes::read_optional")]
        token_sequence: Option<Cow<'a, [u64]>>,
        #[serde(default = "tracked")]
        track_prefill_tokens: bool,
        #[serde(default)]
        expected_output_tokens: Option<u32>,
        #[serde(default)]
        prefill_load_hint: Option<Hint>,
    },
    Free,
    MarkPrefillCompleted,
}

#[derive(Serialize, Deserialize)]
struct Hint {
    initial_effective_prefill_tokens: u64,
    #[serde(default)]
    expected_prefill_duration: Option<Duration>,
}

fn tracked() -> bool {
    true
}

/// The message for a change made by `router_id`.
pub(in crate::mesh) fn encode_slot(event: &BookingEvent, router_id: RouterId) -> Message {
    let data = match &event.change {
        BookingChange::Admitted(admission) => Data::AddRequest {
            token_sequence: Some(Cow::Borrowed(&*admission.sequence)),
            track_prefill_tokens: admission.track_prefill_tokens,
            expected_output_tokens: admission.expected_output_tokens,
            prefill_load_hint: admission.prefill.map(|hint| Hint {
                initial_effective_prefill_tokens: hint.tokens,
                expected_prefill_duration: hint.duration,
            }),
        },
        BookingChange::Freed => Data::Free,
        BookingChange::PrefillCompleted => Data::MarkPrefillCompleted,
    };
    let event_body = Event {
        request_id: Cow::Borrowed(&*event.selection_id),
        worker: Worker { worker_id: event.rank.worker_id, dp_rank: event.rank.dp_rank },
        data,
        router_id,
        lora_name: event.lora_name.as_deref().map(Cow::Borrowed),
    };
    message(
        SLOT_TOPIC,
        &Envelope {
            model_name: Cow::Borrowed(&*event.partition.model_name),
            routing_group: Cow::Borrowed(&*event.partition.routing_group),
            block_size: event.block_size,
            event: event_body,
        },
    )
}

/// Reads a slot message's payload.
///
/// # Errors
/// A mandatory field is missing or of another type.
pub(in crate::mesh) fn decode_slot(payload: &[u8]) -> Result<SlotMessage, rmp_serde::decode::Error> {
    let Envelope { model_name, routing_group, block_size, event } = rmp_serde::from_slice::<Envelope<'_>>(payload)?;
    let change = match event.data {
        Data::AddRequest { token_sequence, track_prefill_tokens, expected_output_tokens, prefill_load_hint } => {
            BookingChange::Admitted(Admission {
                sequence: token_sequence.map_or_else(|| Arc::from([]), |hashes| Arc::from(hashes.into_owned())),
                track_prefill_tokens,
                expected_output_tokens,
                prefill: prefill_load_hint.map(|hint| PrefillHint {
                    tokens: hint.initial_effective_prefill_tokens,
                    duration: hint.expected_prefill_duration,
                }),
            })
        }
        Data::Free => BookingChange::Freed,
        Data::MarkPrefillCompleted => BookingChange::PrefillCompleted,
    };
    let booking = BookingEvent {
        partition: PartitionKey::new(&*model_name, &*routing_group),
        block_size,
        selection_id: Arc::from(&*event.request_id),
        rank: WorkerWithDpRank::new(event.worker.worker_id, event.worker.dp_rank),
        lora_name: event.lora_name.as_deref().map(Arc::from),
        change,
    };
    Ok(SlotMessage { event: booking, router_id: event.router_id })
}
