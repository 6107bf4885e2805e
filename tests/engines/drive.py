"""Two real vLLM engines behind the selector: is every predicted overlap what the engine found?

Prints a line for each check, the numbers it saw, and `N passed, N failed`; exits non-zero when anything failed.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import msgspec
import zmq

HERE = pathlib.Path(__file__).resolve().parent
BLOCK = 32
BLOCKS = 300
STEP_TOKENS = 2048
VOCABULARY = 31_000
OUTPUT = 8


HANDED_OUT = set()


def free_ports(count):
    """Free ports below the ephemeral range, so that no outgoing connection takes them meanwhile.

    None is given twice: whoever got one may not have bound it yet.
    """
    found, port = [], 24_000 + os.getpid() % 4_000
    while len(found) < count:
        port += 1
        if port in HANDED_OUT:
            continue
        with socket.socket() as s:
            try:
                s.bind(("0.0.0.0", port))
                found.append(port)
                HANDED_OUT.add(port)
            except OSError:
                pass
    return found


def call(port, method, path, body=None, timeout=120):
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        conn.request(method, path, data, {"content-type": "application/json"} if data else {})
        answer = conn.getresponse()
        text = answer.read()
        try:
            return answer.status, json.loads(text) if text else None
        except ValueError:
            return answer.status, text.decode(errors="replace")
    finally:
        conn.close()


def wait_for(what, condition, seconds=180):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise TimeoutError(f"gave up waiting for {what}")


class Process:
    def __init__(self, command, log, env=None):
        self.log = open(log, "ab")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                        env={**os.environ, **(env or {})}, start_new_session=True)

    def stop(self, sig=signal.SIGKILL):
        try:
            os.killpg(self.process.pid, sig)
        except ProcessLookupError:
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


class Engine:
    """A vLLM server, with a subscriber of its own that counts what it evicts."""

    def __init__(self, index, options, folder):
        self.name = f"engine-{index}"
        self.port, self.events, self.replay = free_ports(3)
        self.options, self.log = options, folder / f"{self.name}.log"
        self.evicted, self.stored = 0, 0
        self.start()
        threading.Thread(target=self.count, daemon=True).start()

    def start(self):
        env = {"VLLM_ENV": self.options.engines, "VLLM_SERVER_DEV_MODE": "1"}
        self.process = Process(["bash", str(HERE / "serve.sh"), str(self.port), str(self.events), str(self.replay),
                                "--num-gpu-blocks-override", str(BLOCKS),
                                "--max-num-batched-tokens", str(STEP_TOKENS)], self.log, env)

    def wait_ready(self):
        def ready():
            if self.process.process.poll() is not None:
                raise RuntimeError(f"{self.name} exited: {self.log.read_text(errors='replace')[-2000:]}")
            return call(self.port, "GET", "/health", timeout=5)[0] == 200
        wait_for(f"{self.name} to start", ready, 600)

    def count(self):
        sub = zmq.Context.instance().socket(zmq.SUB)
        sub.setsockopt(zmq.SUBSCRIBE, b"")
        sub.connect(f"tcp://127.0.0.1:{self.events}")
        while True:
            for event in msgspec.msgpack.decode(sub.recv_multipart()[2])[1]:
                kind, hashes = ((event["type"], event.get("block_hashes")) if isinstance(event, dict)
                                else (event[0], event[1] if len(event) > 1 else None))
                if kind == "BlockRemoved":
                    self.evicted += len(hashes)
                elif kind == "BlockStored":
                    self.stored += len(hashes)

    def complete(self, tokens):
        """Sends a prompt; returns (cached tokens, output tokens, seconds)."""
        started = time.monotonic()
        status, answer = call(self.port, "POST", "/v1/completions", {
            "model": "tiny", "prompt": tokens, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True,
            "detokenize": False, "return_token_ids": True})
        if status != 200:
            raise RuntimeError(f"{self.name} answered {status}: {answer}")
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return cached, answer["choices"][0]["token_ids"], time.monotonic() - started

    def reset(self):
        wait_for("the cache to be reset", lambda: call(self.port, "POST", "/reset_prefix_cache")[0] == 200, 30)


class Selector:
    """A selection service in front of the engines: ours from a workers file, or the reference."""

    def __init__(self, options, engines, folder, name, reference=False):
        self.port, self.engines, self.reference = free_ports(1)[0], engines, reference
        self.log = folder / f"{name}.log"
        if reference:
            command = [options.reference, "-m", "dynamo.select_service", "--port", str(self.port)]
        else:
            workers = folder / f"{name}.json"
            workers.write_text(json.dumps({"version": 1, "defaults": {"model_name": "tiny", "block_size": BLOCK},
                "workers": [{"name": e.name, "worker_id": i + 1, "endpoint": f"http://127.0.0.1:{e.port}",
                             "kv_events": {"endpoint": f"tcp://127.0.0.1:{e.events}",
                                           "replay": f"tcp://127.0.0.1:{e.replay}"}}
                            for i, e in enumerate(engines)]}))
            command = [options.selector, "selector", "--port", str(self.port), "--workers-file", str(workers)]
        self.process = Process(command, self.log)
        wait_for(f"{name} to start", lambda: call(self.port, "GET", "/health", timeout=5)[0] == 200, 60)
        if reference:
            for i, e in enumerate(engines):
                status, record = call(self.port, "POST", "/workers", {
                    "worker_id": i + 1, "model_name": "tiny", "endpoint": f"http://127.0.0.1:{e.port}",
                    "block_size": BLOCK, "kv_events_endpoint": f"tcp://127.0.0.1:{e.events}",
                    "replay_endpoint": f"tcp://127.0.0.1:{e.replay}"})
                assert status == 201 and record["lifecycle"] == "schedulable", (status, record)
        wait_for("workers to be schedulable", lambda: call(self.port, "GET", "/ready")[0] == 200, 60)

    def reserve(self, tokens, pinned=None):
        body = {"model_name": "tiny", "token_ids": tokens, "expected_output_tokens": OUTPUT}
        if pinned is not None:
            body["pinned_worker"] = {"worker_id": pinned, "dp_rank": 0}
        status, answer = call(self.port, "POST", "/select_and_reserve", body)
        if status != 200:
            raise RuntimeError(f"select_and_reserve answered {status}: {answer}")
        return answer

    def free(self, selection):
        call(self.port, "DELETE", f"/reservations/{selection}")

    def overlaps(self, tokens):
        status, answer = call(self.port, "POST", "/overlap_scores", {"model_name": "tiny", "token_ids": tokens})
        assert status == 200, (status, answer)
        return {row["worker_id"]: row["device_blocks"] for row in answer["workers"]}

    def settle(self, tokens, worker):
        """Waits until the engine's events for a prompt it just served are in the index, and no more come."""
        wait_for("events of the last request", lambda: self.overlaps(tokens)[worker] >= len(tokens) // BLOCK, 30)
        if self.reference:
            time.sleep(0.02)
            return
        seen, since = None, time.monotonic()
        while time.monotonic() - since < 0.03:
            positions = json.dumps([row.get("position") for row in call(self.port, "GET", "/listeners")[1]])
            if positions != seen:
                seen, since = positions, time.monotonic()
            time.sleep(0.005)


class Workload:
    """Growing sessions over a few system prompts."""

    def __init__(self, seed, sessions=40, systems=6):
        self.random = random.Random(seed)
        self.systems = [self.tokens(self.random.randrange(256, 512)) for _ in range(systems)]
        self.sessions = [self.fresh() for _ in range(sessions)]
        self.lock = threading.Lock()
        self.busy = set()

    def tokens(self, count):
        return [self.random.randrange(10, VOCABULARY) for _ in range(count)]

    def fresh(self):
        return self.random.choice(self.systems) + self.tokens(self.random.randrange(32, 128))

    def take(self):
        with self.lock:
            free = [i for i in range(len(self.sessions)) if i not in self.busy]
            index = self.random.choice(free)
            self.busy.add(index)
            return index, list(self.sessions[index])

    def give(self, index, output):
        with self.lock:
            grown = self.sessions[index] + output + self.tokens(self.random.randrange(16, 160))
            self.sessions[index] = grown if len(grown) < 2_400 else self.fresh()
            self.busy.discard(index)


class Checks:
    def __init__(self):
        self.passed, self.failed = 0, 0

    def check(self, name, ok, detail=""):
        self.passed += ok
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}{': ' + str(detail) if detail != '' else ''}", flush=True)


def predicted(answer, tokens):
    """The engine computes at least the last token, so it never counts that token's block."""
    return min(answer["overlap"]["gpu"], (len(tokens) - 1) // BLOCK * BLOCK)


def one(selector, engines, workload, pinned=None, settle=True):
    index, tokens = workload.take()
    answer = selector.reserve(tokens, pinned)
    worker = answer["worker_id"]
    cached, output, seconds = engines[worker - 1].complete(tokens)
    selector.free(answer["selection_id"])
    if settle:
        selector.settle(tokens, worker)
    workload.give(index, output)
    return worker, predicted(answer, tokens), cached, len(tokens), seconds


def serial(selector, engines, workload, count, pinned=None):
    return [one(selector, engines, workload, pinned) for _ in range(count)]


def four_at_a_time(selector, engines, workload, count):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(one, selector, engines, workload, None, False) for _ in range(count)]
        return [job.result() for job in jobs]


def mismatches(rows):
    return [(w, p, c, n) for w, p, c, n, _ in rows if p != c]


def share(rows):
    return sum(r[2] for r in rows) / sum(r[3] for r in rows)


def run(options, folder):
    checks = Checks()
    engines = [Engine(i, options, folder) for i in range(2)]
    selectors = []

    def selector(name, reference=False):
        selectors.append(Selector(options, engines, folder, name, reference))
        return selectors[-1]

    try:
        for engine in engines:
            engine.wait_ready()
        ours = selector("ours")
        work = Workload(options.seed)
        serial(ours, engines, work, 40)

        rows = serial(ours, engines, work, options.requests // 2)
        wrong = mismatches(rows)
        checks.check(f"serial: {len(rows)} requests, all exact", not wrong, wrong[:5] or f"hit rate {share(rows):.3f}")

        # Four at a time a request may be decided while an engine step that stores or evicts is under way; now and then
        # one waits in the engine for a second step.
        total, beyond, by_cause, worst = 0, 0, collections.Counter(), 0
        while total < options.requests // 2 or min(e.evicted for e in engines) < 1_000:
            for _, guess, cached, _, _ in four_at_a_time(ours, engines, work, 40):
                total += 1
                by_cause["exact" if guess == cached else
                         "stored meanwhile" if guess < cached else "evicted meanwhile"] += 1
                worst = max(worst, abs(guess - cached) // BLOCK)
                beyond += abs(guess - cached) > STEP_TOKENS
        checks.check(f"concurrent: {total} requests within the blocks of one engine step ({STEP_TOKENS // BLOCK})",
                     beyond <= total // 50, f"{beyond} beyond, worst {worst} blocks; {dict(by_cause)}")
        for engine in engines:
            checks.check(f"{engine.name} evicted at least 1,000 blocks", engine.evicted >= 1_000, engine.evicted)
        settle_all(ours, engines)
        rows = serial(ours, engines, work, 20)
        checks.check("serial again after concurrency, all exact", not mismatches(rows), mismatches(rows)[:5] or "")

        late = selector("late")
        def same():
            return all(late.overlaps(s) == ours.overlaps(s) for s in work.sessions)
        wait_for("the late selector to catch up", same, 60)
        rows = serial(late, engines, work, 20)
        checks.check("a selector that starts late learns what the engines hold by replay",
                     not mismatches(rows), mismatches(rows)[:5] or f"{len(work.sessions)} sessions equal")

        engines[0].process.stop()
        engines[0].start()
        engines[0].wait_ready()
        rows = serial(ours, engines, work, 30, pinned=1)
        stale = [(p, c) for _, p, c, _, _ in rows if p > c]
        checks.check("after a restart at the same address nothing that is gone is credited", not stale, stale[:5] or "")
        checks.check("after a restart exact at once", not mismatches(rows), mismatches(rows)[:5] or "")
        rows = serial(ours, engines, work, 40)
        checks.check("both engines exact after the restart", not mismatches(rows), mismatches(rows)[:5] or "")

        theirs = selector("reference", reference=True)
        rates = {"ours": [], "reference": []}
        for round_ in range(options.rounds):
            pair = [("ours", ours), ("reference", theirs)]
            for name, chosen in pair if round_ % 2 == 0 else pair[::-1]:
                for engine in engines:
                    engine.reset()
                rows = serial(chosen, engines, Workload(options.seed + 1 + round_), 100)
                rates[name].append(share(rows))
        mean = {name: sum(values) / len(values) for name, values in rates.items()}
        checks.check("hit rate over paired rounds not more than 2 points under the reference's",
                     mean["ours"] >= mean["reference"] - 0.02,
                     "; ".join(f"{n} {mean[n]:.3f} {[round(v, 3) for v in rates[n]]}" for n in rates))
    finally:
        for process in selectors + engines:
            process.process.stop()
    return checks


def settle_all(selector, engines):
    seen, since = None, time.monotonic()
    while time.monotonic() - since < 0.2:
        now = [(e.evicted, e.stored) for e in engines]
        if now != seen:
            seen, since = now, time.monotonic()
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--selector", required=True, help="the pointsman binary")
    parser.add_argument("--reference", required=True, help="a Python that has the reference installed")
    parser.add_argument("--engines", required=True, help="the environment install.sh made")
    parser.add_argument("--requests", type=int, default=520)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="pointsman-engines-") as folder:
        checks = run(options, pathlib.Path(folder))
    print(f"{checks.passed} passed, {checks.failed} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
