"""Ours and the reference under the same load, in one run, in turn: server CPU, latency, event ingest, memory."""

import argparse
import json
import os
import pathlib
import platform
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

import msgpack
import zmq

TICKS = os.sysconf("SC_CLK_TCK")
# Title, blocks, and what `pointsman bench` is told.
PROMPTS = [("128 hashes", 128, ["--prompt", "hashes", "--blocks", "128"]),
           ("8,000 tokens", 500, ["--prompt", "tokens", "--blocks", "500"])]


def free_port():
    for port in range(25_000 + os.getpid() % 3_000, 32_000):
        with socket.socket() as s:
            try:
                s.bind(("0.0.0.0", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port")


class Server:
    def __init__(self, options, name, events, folder, hashes=0):
        self.name, self.port = name, free_port()
        command = {"ours": [options.pointsman, "selector", "--port", str(self.port)],
                   "reference": [options.reference, "-m", "dynamo.select_service", "--port", str(self.port)],
                   "floor": [options.floor, str(self.port), str(hashes)],
                   "floor that parses": [options.floor, str(self.port), str(hashes), "parse"]}[name]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "POINTSMAN_"))}
        env |= {"DYN_ROUTER_USE_KV_EVENTS": str(events).lower()}
        if options.quiet_logs:
            env |= {"DYN_LOG": "warn"}
        self.log = open(folder / f"{name}.log", "ab")
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)
        while True:
            try:
                if self.http("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)

    def http(self, method, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def load(options, server, *arguments):
    command = [options.pointsman, "bench", "--url", f"http://127.0.0.1:{server.port}", "--server-pid",
               str(server.process.pid), "--json", "--duration", str(options.seconds), "--warmup", "1", *arguments]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    if answer["errors"]:
        print(f"  {server.name}: errors {answer['errors']}", file=sys.stderr)
    return answer


def http(options, folder, rows, events):
    mode = "events on" if events else "events off"
    # Nobody listens there: workers of a server that follows events must name an endpoint.
    extra = ["--kv-events-base-port", "19000"] if events else []
    for title, _, prompt in PROMPTS:
        def measure(*arguments):
            seen = {"ours": [], "reference": []}
            for _ in range(options.rounds):
                for name in seen:
                    with Server(options, name, events, folder) as server:
                        seen[name].append(load(options, server, *prompt, *extra, *arguments))
            return lambda value: tuple(statistics.median(value(r) for r in seen[name]) for name in seen)

        pair = measure("--cycle", "reserve")
        cycles = pair(lambda r: r["cycles_per_second"])
        reserve = lambda r: r["latency_us"]["select_and_reserve"]
        rows.append((f"server CPU a cycle, {title}, {mode}", "us", *pair(lambda r: r["server_cpu_us_per_cycle"])))
        rows.append((f"cycles a second, {title}, {mode}", "1/s", *cycles))
        rows.append((f"select_and_reserve p50, closed loop, {title}, {mode}", "us", *pair(lambda r: reserve(r)["p50"])))
        rate = max(1, int(cycles[1] / 2))
        pair = measure("--cycle", "reserve", "--rate", str(rate))
        rows.append((f"select_and_reserve p99 at {rate} cycles/s, {title}, {mode}", "us",
                     *pair(lambda r: reserve(r)["p99"])))
        pair = measure("--cycle", "select")
        rows.append((f"server CPU a select, {title}, {mode}", "us", *pair(lambda r: r["server_cpu_us_per_cycle"])))


def floor(options, folder, rows):
    """The cost of a cycle beside servers that answer constants: what HTTP and an ordinary parser take of it."""
    for title, hashes, prompt in PROMPTS:
        seen = {"floor": [], "floor that parses": [], "ours": []}
        for _ in range(options.rounds):
            for name in seen:
                with Server(options, name, False, folder, hashes) as server:
                    answer = load(options, server, *prompt, "--cycle", "reserve")
                    seen[name].append(answer["server_cpu_us_per_cycle"])
        rows.append((title, *(statistics.median(values) for values in seen.values())))


def batches(worker, blocks, size, per_batch):
    """Chains of 4,096 blocks, content of its own for every block of every worker."""
    name, chain = worker << 40, 4_096
    for first in range(0, blocks, per_batch):
        names = [name + first + i + 1 for i in range(min(per_batch, blocks - first))]
        parent = None if first % chain == 0 else name + first
        tokens = [(worker * 1_000_003 + (first + i) * 7 + j * 13) % 4_000_000_000
                  for i in range(len(names)) for j in range(size)]
        event = {"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens,
                 "block_size": size, "lora_id": None, "medium": "GPU", "lora_name": None}
        yield msgpack.packb([1.5, [event], 0]), tokens, first


def events(options, folder, rows, per_batch, blocks, workers=8, size=16):
    seen = {"ours": [], "reference": []}
    each = blocks // workers
    frames = {w: list(batches(w, each, size, per_batch)) for w in range(1, workers + 1)}
    for _ in range(options.rounds):
        for name in seen:
            with Server(options, name, True, folder) as server:
                context = zmq.Context()
                sockets = {}
                for worker in frames:
                    pub = context.socket(zmq.XPUB)
                    pub.setsockopt(zmq.SNDHWM, 0)
                    port = pub.bind_to_random_port("tcp://127.0.0.1")
                    server.http("POST", "/workers", {"worker_id": worker, "endpoint": "http://w", "block_size": size,
                                                     "kv_events_endpoint": f"tcp://127.0.0.1:{port}"})
                    assert pub.poll(20_000), "no subscription"
                    sockets[worker] = pub
                cpu, memory = server.cpu(), server.resident()
                # The reference keeps 1,000 messages a socket; both are fed no faster than they read.
                window = 400
                longest = max(len(f) for f in frames.values())
                for start in range(0, longest, window):
                    for worker, pub in sockets.items():
                        for seq in range(start, min(start + window, len(frames[worker]))):
                            pub.send_multipart([b"", struct.pack(">Q", seq), frames[worker][seq][0]])
                    visible(server, frames, min(start + window, longest) - 1, size, per_batch)
                seen[name].append(((server.cpu() - cpu) / blocks * 1e6, (server.resident() - memory) / blocks))
                context.destroy(0)
    title = f"{per_batch}-block batches" if per_batch > 1 else "one-block batches"
    rows.append((f"KV events from sockets, server CPU a block, {title}", "us",
                 *(statistics.median(r[0] for r in seen[n]) for n in seen)))
    rows.append((f"resident memory a block, {blocks:,} blocks of one holder, {title}", "B",
                 *(statistics.median(r[1] for r in seen[n]) for n in seen)))


def visible(server, frames, batch, size, per_batch):
    """Waits until every worker's batch is in the index, asking seldom."""
    for worker, sent in frames.items():
        index = min(batch, len(sent) - 1)
        chain_start = index * per_batch // 4_096 * 4_096 // per_batch
        tokens = [t for f in sent[chain_start:index + 1] for t in f[1]]
        while True:
            rows = server.http("POST", "/overlap_scores", {"token_ids": tokens})[1]["workers"]
            depth = next(r["device_blocks"] for r in rows if r["worker_id"] == worker)
            if depth >= len(tokens) // size:
                break
            time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pointsman", required=True)
    parser.add_argument("--reference", required=True, help="a Python that has the reference installed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--quiet-logs", action="store_true",
                        help="start both with DYN_LOG=warn: the reference writes a line a selection by default")
    parser.add_argument("--floor", help="the program of benches/floor, to show the least that HTTP costs")
    parser.add_argument("--only", choices=["http", "events", "floor"])
    options = parser.parse_args()
    if options.only == "floor" and not options.floor:
        parser.error("--only floor needs --floor")
    if options.quick:
        options.rounds, options.seconds = 1, 2
    rows, floors = [], []
    with tempfile.TemporaryDirectory(prefix="pointsman-compare-") as folder:
        if options.floor and options.only in (None, "floor"):
            floor(options, pathlib.Path(folder), floors)
        if options.only in (None, "http"):
            http(options, pathlib.Path(folder), rows, events=False)
            http(options, pathlib.Path(folder), rows, events=True)
        if options.only in (None, "events"):
            scale = 4 if options.quick else 1
            events(options, pathlib.Path(folder), rows, 64, 1_048_576 // scale)
            events(options, pathlib.Path(folder), rows, 1, 65_536 // scale)
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    print(f"\n{cpu}, {os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}; "
          f"median of {options.rounds} rounds of {options.seconds} s, ours and the reference in turn\n")
    if floors:
        print("Server CPU a cycle beside servers that answer constants, events off, us\n\n"
              "| prompt | reads the body | parses it too | ours | ours / parsing |\n|---|---|---|---|---|")
        for title, bare, parsing, ours in floors:
            print(f"| {title} | {bare:.1f} | {parsing:.1f} | {ours:.1f} | {ours / parsing:.2f} |")
        print()
    if not rows:
        return
    print("| what | unit | ours | reference | ratio |\n|---|---|---|---|---|")
    for what, unit, ours, reference in rows:
        digits = 2 if max(ours, reference) < 100 else 0
        print(f"| {what} | {unit} | {ours:,.{digits}f} | {reference:,.{digits}f} | {ours / reference:.3f} |")


if __name__ == "__main__":
    main()
