"""Two engines, each on a core of its own, and a selector in front of them."""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "engines"))
import drive  # noqa: E402

from workloads import BLOCK  # noqa: E402

LAYERS = 12
BUDGET = 512
POLICIES = {
    "round-robin": "worker_selection:\n  aggregated: turns\n  instances:\n    - {name: turns, type: round-robin}\n",
    # The cost of the reference, and what a selector without a document runs.
    "default": "worker_selection:\n  aggregated: default\n",
    "work-ahead": "worker_selection:\n  aggregated: ahead\n  instances:\n    - {name: ahead, type: work-ahead}\n",
}


class Engine(drive.Engine):
    def __init__(self, index, options, folder, kv_blocks):
        self.core, self.kv_blocks = sorted(os.sched_getaffinity(0))[index], kv_blocks
        super().__init__(index, options, folder)

    def start(self):
        env = {"VLLM_ENV": self.options.engines, "VLLM_SERVER_DEV_MODE": "1"}
        # Nicer than the client and the selector, which share its core and take little of it.
        self.process = drive.Process(
            ["taskset", "-c", str(self.core), "nice", "-n", "5", "bash", str(drive.HERE / "serve.sh"),
             str(self.port), str(self.events), str(self.replay),
             "--hf-overrides", json.dumps({"num_hidden_layers": LAYERS}),
             "--num-gpu-blocks-override", str(self.kv_blocks), "--max-num-batched-tokens", str(BUDGET),
             "--disable-uvicorn-access-log"], self.log, env)


class Selector(drive.Selector):
    """A selector that runs one policy; a new one for each run, so that none has learnt anything before."""

    def __init__(self, options, engines, folder, policy):
        self.port, self.engines, self.reference = drive.free_ports(1)[0], engines, False
        document, workers = folder / f"{policy}.yaml", folder / "workers.json"
        document.write_text(POLICIES[policy])
        workers.write_text(json.dumps({"version": 1, "defaults": {
            "model_name": "tiny", "block_size": BLOCK, "max_num_batched_tokens": BUDGET}, "workers": [
                {"name": e.name, "worker_id": i + 1, "endpoint": f"http://127.0.0.1:{e.port}",
                 "total_kv_blocks": e.kv_blocks,
                 "kv_events": {"endpoint": f"tcp://127.0.0.1:{e.events}", "replay": f"tcp://127.0.0.1:{e.replay}"}}
                for i, e in enumerate(engines)]}))
        self.process = drive.Process([options.selector, "selector", "--port", str(self.port), "--workers-file",
                                      str(workers), "--router-policy-config", str(document)],
                                     folder / f"selector-{policy}.log")
        drive.wait_for("the selector", lambda: drive.call(self.port, "GET", "/ready", timeout=5)[0] == 200, 60)


def start(options, folder, kv_blocks):
    engines = []
    try:
        for index in range(2):
            engines.append(Engine(index, options, folder, kv_blocks))
        for engine in engines:
            engine.wait_ready()
    except BaseException:
        stop(engines)
        raise
    return engines


def stop(processes):
    for process in processes:
        process.process.stop()
