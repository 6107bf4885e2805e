"""Runs every policy on two real engines, round by round, and writes a JSON line a run."""

import argparse
import asyncio
import json
import pathlib
import sys
import tempfile
import time

import client
import fleet
import workloads
from calibrate import calibrate

# What is asked for: the workload, its rate, and the KV cache of each engine in blocks of 32 tokens.
SETTINGS = {
    "agentic-tight": (workloads.agentic, 0.45, 700),
    "tenants": (workloads.tenants, 7.0, 700),
    "agentic-room": (workloads.agentic, 0.6, 2_000),
}


def drawn(setting, seed, seconds):
    draw, rate, _ = SETTINGS[setting]
    return draw(seed, rate, seconds)


def one(options, engines, folder, setting, seed, policy):
    for engine in engines:
        engine.reset()
    workload = drawn(setting, seed, options.seconds)
    evicted = sum(engine.evicted for engine in engines)
    selector = fleet.Selector(options, engines, folder, policy)
    try:
        began = time.monotonic()
        records = asyncio.run(client.serve(workload, selector.port, [engine.port for engine in engines]))
        lasted = time.monotonic() - began
    finally:
        fleet.stop([selector])
    if len(records) != workload.requests():
        raise RuntimeError(f"{len(records)} of {workload.requests()} requests")
    run = {"kind": "run", "setting": setting, "kv_blocks": SETTINGS[setting][2], "rate": SETTINGS[setting][1],
           "seconds": options.seconds, "seed": seed, "policy": policy, "lasted": round(lasted, 2),
           "evicted": sum(engine.evicted for engine in engines) - evicted,
           "load_average": load_average()}
    for name in ("session", "turn", "worker", "prompt", "cached", "predicted"):
        run[name] = [record[name] for record in records]
    for name, digits in (("began", 3), ("first", 4), ("end", 4), ("late", 4)):
        run[name] = [round(record[name], digits) for record in records]
    return run


def load_average():
    return float(pathlib.Path("/proc/loadavg").read_text().split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--selector", required=True, help="the pointsman binary")
    parser.add_argument("--engines", required=True, help="the environment tests/engines/install.sh made")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="where lines are appended")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="which, in order")
    parser.add_argument("--policies", default=",".join(fleet.POLICIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=40.0, help="time in which requests come")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each further one has the next")
    options = parser.parse_args()
    policies = options.policies.split(",")
    with tempfile.TemporaryDirectory(prefix="pointsman-engines-") as name, options.output.open("a") as output:
        folder = pathlib.Path(name)

        def write(line):
            output.write(json.dumps(line, separators=(",", ":")) + "\n")
            output.flush()

        engines, blocks = [], None
        try:
            for setting in options.settings.split(","):
                if SETTINGS[setting][2] != blocks:
                    fleet.stop(engines)
                    blocks = SETTINGS[setting][2]
                    engines = fleet.start(options, folder, blocks)
                    selector = fleet.Selector(options, engines, folder, "default")
                    try:
                        line = calibrate(selector, engines, options.seed)
                    finally:
                        fleet.stop([selector])
                    write({**line, "kv_blocks": blocks})
                    print(json.dumps(line["constants"]), "errors", round(line["median_error"], 3), flush=True)
                for round_ in range(options.rounds):
                    turn = (options.seed + round_ - 1) % len(policies)
                    for policy in policies[turn:] + policies[:turn]:
                        run = one(options, engines, folder, setting, options.seed + round_, policy)
                        write(run)
                        first = sorted(run["first"][len(run["first"]) // 10:])
                        print(f"{setting} seed {run['seed']} {policy:12} {len(run['first'])} requests "
                              f"p50 {first[len(first) // 2]:.3f} p90 {first[len(first) * 9 // 10]:.3f} "
                              f"cached {sum(run['cached']) / sum(run['prompt']):.3f} lasted {run['lasted']} "
                              f"late {max(run['late']):.3f}", flush=True)
        finally:
            fleet.stop(engines)


if __name__ == "__main__":
    sys.exit(main())
