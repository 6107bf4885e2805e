"""Writes fuzz/seeds/mesh: recorded messages of both topics, and messages of ours as their formats are documented.

The first byte is the kind: 0 booking, 1 session, 2 envelope of ours, 3 answer to a question for state.
"""

import base64
import json
import pathlib
import struct

root = pathlib.Path(__file__).resolve().parent
out = root / "seeds" / "mesh"
out.mkdir(parents=True, exist_ok=True)
KINDS = {"dynamo.slot-tracker.v1": 0, "dynamo.session-affinity.v1": 1}


def pack(value):
    """MessagePack, as far as it is needed here."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    return bytes([0x80 | len(value)]) + b"".join(pack(key) + pack(item) for key, item in value.items())


def write(name, kind, payload):
    (out / name).write_bytes(bytes([kind]) + payload)


for capture in ("lifecycle", "select", "affinity"):
    recorded = json.loads((root.parent / "tests" / "golden" / "replica" / f"capture-{capture}.json").read_text())
    frames = [frame for step in recorded["steps"] for frame in step.get("frames", [])]
    for at, frame in enumerate(frames):
        payload = base64.b64decode(frame["payload_b64"])
        if len(payload) <= 2048:
            write(f"{capture}-{at}", KINDS[frame["topic"]], payload)

origins = [{"router_id": 2**63 + 5, "bookings": 3, "high": 2**64 - 1, "low": 7, "sessions": 9}]
partition = {"model_name": "m", "routing_group": "default", "block_size": 16, "origins": origins}
beacon = {"instance_id": "i", "url": "http://10.0.0.1:8092", "http_port": None, "endpoint": "tcp://10.0.0.1:9092",
          "sent": 2**60, "sequence": 5, "session_sequence": 1, "leaving": False, "partitions": [partition]}
write("beacon", 2, pack({"version": 1, "router_id": 2**63 + 5, "beacon": beacon}))
missed = {"model_name": "m", "routing_group": "default", "selection_id": "x", "worker_id": 1, "dp_rank": 0,
          "freed": True, "age": 10**9}
write("missed", 2, pack({"version": 1, "router_id": 7, "missed": missed, "later": [1, {"a": None}]}))
write("other-version", 2, pack({"version": 2, "router_id": 7}))

booking = {"id": "x", "worker_id": 1, "dp_rank": 0, "lora_name": "a", "sequence": [1, 2**63], "track_prefill_tokens": True,
           "prefill_tokens": 32, "prefill_nanos": 10**7, "prefill_completed": False, "origin": 9, "age": 10**9}
session = {"id": "s", "worker_id": 1, "dp_rank": None, "sequence": 10**18, "writer_id": 9}
parts = [{"head": {"version": 1, "instance_id": "i", "block_size": 16}}, {"sessions": [session]},
         {"bookings": [booking, booking]}, {"end": True}]
packed = [pack(part) for part in parts]
answer = b"".join(struct.pack("<I", len(part)) + part for part in packed)
write("answer", 3, answer)
write("answer-broken-off", 3, answer[:-9])
