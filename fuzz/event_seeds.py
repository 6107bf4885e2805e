"""Writes fuzz/seeds/events from the recorded streams in tests/: one file a stream, each batch after its length."""

import base64
import json
import pathlib

root = pathlib.Path(__file__).resolve().parent
out = root / "seeds" / "events"
out.mkdir(parents=True, exist_ok=True)


def write(name, payloads):
    payloads = [p for p in payloads if 0 < len(p) <= 2048]
    if payloads:
        (out / name).write_bytes(b"".join(len(p).to_bytes(2, "big") + p for p in payloads[:8]))


scenarios = root.parent / "tests" / "golden" / "index" / "scenarios"
for area in ("01-wire", "02-groups", "04-tiers", "beyond"):
    for scenario in json.loads((scenarios / f"{area}.json").read_text())["scenarios"]:
        steps = [step for step in scenario["steps"] if "payload_b64" in step]
        write(scenario["id"], [base64.b64decode(step["payload_b64"]) for step in steps])

for line in (root.parent / "tests" / "fixtures" / "kv-events.jsonl").read_text().splitlines():
    case = json.loads(line)
    write(case["id"], [bytes.fromhex(case["frames_hex"][-1])])
