"""What the simulator says of the same sessions on engines with the constants that were measured."""

import json
import pathlib
import subprocess
import tempfile

import numpy

import workloads
from fleet import BUDGET
from workloads import BLOCK

DRAWN = {"agentic-tight": workloads.agentic, "agentic-room": workloads.agentic, "tenants": workloads.tenants}


def simulate(selector, files, kv_blocks, constants, policies, seeds="1"):
    """Figures by file and policy, in the order given."""
    baseline, *others = sorted(policies, key=lambda policy: policy != "default")
    command = [selector, "simulate", "--sessions", ",".join(map(str, files)), "--block-size", str(BLOCK),
               "--workers", "2", "--seeds", seeds, "--token-budget", str(BUDGET), "--kv-blocks", str(kv_blocks),
               "--max-sequences", "256", "--step-base", f"{constants['base'] * 1e9:.0f}ns", "--step-floor", "0",
               "--per-token", f"{constants['per_token'] * 1e6:.6f}", "--attention",
               f"{constants['attention'] * 1e9:.6f}", "--decode-context", f"{constants['decode_context'] * 1e9:.6f}",
               "--event-delay", f"{constants['event_delay'] * 1e9:.0f}ns", "--baseline", baseline, "--json", "-"]
    for policy in others:
        command += ["--policy", policy]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [{entry["policy"]: entry for entry in cell["policies"]} for cell in answer["cells"]]


def flat(figures, outside):
    """The simulator's figures under the names of analyse.py; a request takes `outside` more than its steps."""
    times = {f"ttft_{name}": figures["ttft"][name] + outside for name in ("p50", "p90", "p99", "mean")}
    return {**times, "e2e_mean": figures["e2e"]["mean"] + outside, "itl_mean": figures["itl_mean"],
            "block_hit_rate": figures["block_hit_rate"]}


def predict(selector, setting, runs, constants, policies):
    """By policy: means over rounds, ratios to the default (geometric mean), and the p90 ratio of each round."""
    with tempfile.TemporaryDirectory(prefix="pointsman-sessions-") as folder:
        files = []
        for run in runs:
            files.append(pathlib.Path(folder) / f"{setting}-{run['seed']}.jsonl")
            DRAWN[setting](run["seed"], run["rate"], run["seconds"]).write(files[-1])
        cells = simulate(selector, files, runs[0]["kv_blocks"], constants, policies)
    rows = [{policy: flat(cell[policy]["figures"], constants["outside"]) for policy in policies} for cell in cells]
    out = {}
    for policy in policies:
        means = {name: float(numpy.mean([row[policy][name] for row in rows])) for name in rows[0][policy]}
        ratios = {name: [row[policy][name] / row["default"][name] for row in rows]
                  for name in means if name != "block_hit_rate"}
        out[policy] = (means, {name: float(numpy.exp(numpy.mean(numpy.log(values)))) for name, values in ratios.items()},
                       ratios["ttft_p90"])
    return out
