#!/usr/bin/env python3
"""Time to warm and peak memory of a selector that takes its index from another one over loopback.

    cargo build --release --bin pointsman
    python3 benches/recovery.py [--blocks 100000,1000000,10000000] [--ranks 64] [--shared 0.0]

Two selectors, as processes. The first one is filled by this script, which serves it a snapshot of random chains (and so
measures nothing); the second one recovers from the first. Told are: the time from the first question to the end of
recovery as `/readyz` reports it (the second of --indexer-peers' fixed pause before it is not in it), blocks a second,
and VmHWM of both. Needs nothing but Python.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RUN = 64  # blocks of a run, 16 runs a chain
CHAIN = 16
CHUNK_RUNS = 2048


def zstd(content):
    """A frame of raw blocks: this script has no compressor, and the content is random anyway."""
    out = [b"\x28\xb5\x2f\xfd", bytes([0b10100000]), struct.pack("<I", len(content))]
    for at in range(0, len(content), 1 << 17):
        piece = content[at : at + (1 << 17)]
        last = at + (1 << 17) >= len(content)
        out += [struct.pack("<I", len(piece) << 3 | int(last))[:3], piece]
    return b"".join(out)


def chunk(header, body=b""):
    header = dict(header, version=1, export="bench")
    if body:
        header["sections"] = [{"kind": "runs", "bytes": len(body)}]
    text = json.dumps(header).encode()
    return zstd(struct.pack("<I", len(text)) + text + body)


class Source:
    """A peer with `blocks` blocks in `ranks` ranks; a share of the chains is held by all of them."""

    def __init__(self, blocks, ranks, shared):
        self.blocks, self.ranks, self.shared = blocks, ranks, shared
        self.table = [
            {"worker_id": 1 + r, "dp_rank": 0, "blocks": blocks // ranks, "trust": "complete"} for r in range(ranks)
        ]
        self.partition = {"model_name": "m", "routing_group": "default", "block_size": 16}
        self.runs = self.make_runs()

    def make_runs(self):
        dice = random.Random(1)
        left = self.blocks
        while left > 0:
            holders = range(self.ranks) if dice.random() < self.shared else [dice.randrange(self.ranks)]
            content = [os.urandom(16 * RUN) for _ in range(CHAIN)]
            for rank in holders:
                parent = None
                for run in content:
                    blocks = min(RUN, left)
                    if blocks <= 0:
                        return
                    left -= blocks
                    yield struct.pack("<IBBHQ", rank, 0, parent is not None, blocks, parent or 0) + run[: 16 * blocks]
                    parent = struct.unpack("<Q", run[-16:-8])[0]

    def answer(self, path, query):
        if path == "/replica_sync/index":
            partition = dict(self.partition, ranks=self.table)
            summary = {"version": 1, "instance_id": "bench", "ready": True, "partitions": [partition]}
            return json.dumps(summary).encode()
        if path == "/replica_sync/index/chunk":
            if "chunk" not in query:
                return chunk({"chunk": 0, "partition": self.partition, "ranks": self.table})
            body = b"".join(run for _, run in zip(range(CHUNK_RUNS), self.runs))
            return chunk({"chunk": int(query["chunk"]), "last": not body}, body)
        return None


def serve(source):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path, _, query = self.path.partition("?")
            query = dict(pair.split("=", 1) for pair in query.split("&") if pair)
            body = source.answer(path, query)
            self.send_response(200 if body is not None else 404)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Selector:
    def __init__(self, binary, peer):
        self.log = f"/tmp/pointsman-recovery-{os.getpid()}-{random.randrange(1 << 30)}.log"
        flags = ["selector", "--host", "127.0.0.1", "--port", "0", "--indexer-peers", peer]
        with open(self.log, "w") as out:
            self.process = subprocess.Popen([binary, *flags], stdout=out, stderr=subprocess.STDOUT)
        self.url = None
        while self.url is None:
            with open(self.log) as log:
                for line in log:
                    if "listening address=" in line:
                        self.url = "http://" + line.split("listening address=")[1].split()[0]
            time.sleep(0.01)

    def ready(self):
        while True:
            try:
                with urllib.request.urlopen(self.url + "/readyz") as answer:
                    return json.load(answer)["recovery"]
            except urllib.error.HTTPError:
                time.sleep(0.02)

    def memory(self, field):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        os.unlink(self.log)


def measure(binary, blocks, ranks, shared):
    server = serve(Source(blocks, ranks, shared))
    first = Selector(binary, f"http://127.0.0.1:{server.server_address[1]}")
    filled = first.ready()
    server.shutdown()
    before, idle = first.cpu(), first.memory("VmRSS:")
    second = Selector(binary, first.url)
    report = second.ready()
    row = {
        "blocks": report["blocks"],
        "seconds": round(report["seconds"], 2),
        "blocks_a_second": round(report["blocks"] / max(report["seconds"], 1e-3)),
        "server_cpu_seconds": round(first.cpu() - before, 2),
        "joiner_cpu_seconds": round(second.cpu(), 2),
        "joiner_peak_mib": round(second.memory("VmHWM:")),
        "joiner_mib": round(second.memory("VmRSS:")),
        "server_mib_before": round(idle),
        "server_peak_mib": round(first.memory("VmHWM:")),
    }
    first.stop()
    second.stop()
    assert filled["blocks"] == report["blocks"] == blocks, (filled, report)
    return row


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pointsman", default="target/release/pointsman")
    arguments.add_argument("--blocks", default="100000,1000000,10000000")
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--shared", type=float, default=0.0, help="share of chains that all ranks hold")
    arguments = arguments.parse_args()
    for blocks in arguments.blocks.split(","):
        print(json.dumps(measure(arguments.pointsman, int(blocks), arguments.ranks, arguments.shared)), flush=True)


if __name__ == "__main__":
    main()
