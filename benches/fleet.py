#!/usr/bin/env python3
"""What a fleet of selectors costs, and how fast it agrees: real processes over loopback.

    cargo build --release --bin pointsman
    python3 benches/fleet.py [loss] [lag] [cost] [joiner] [catalog] [--json]

loss     time from a lost message until the other replica's load is equal again
lag      from a booking answered on one replica until another one shows it, under load
cost     CPU of a booking, its finished prefill and its end on the replica that publishes and on one that receives, at
         several sizes of a complete mesh, beside no mesh
joiner   from the start of a process until it is ready and has its peers' load, by live bookings
catalog  a workers file of so many endpoints to three selectors, and one change to it, through `pointsman discover`

Needs nothing but Python and Linux. CPU is the sum of the run times in /proc/PID/task/*/schedstat.
"""
import argparse
import glob
import http.client
import json
import math
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

WORKERS = 64
FIRST_WORKER = 1_000_001  # as `pointsman bench` numbers them
MODEL = "pointsman-bench"
BLOCK = 16


def free_port(taken=set()):
    while True:
        port = random.randrange(20_000, 32_000)
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        taken.add(port)
        return port


def wait_for(what, look, limit=120.0, pause=0.002):
    until = time.monotonic() + limit
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > until:
            raise RuntimeError(f"no {what} within {limit} s")
        time.sleep(pause)


def percentiles(values):
    values = sorted(values)
    at = lambda share: values[max(0, math.ceil(share * len(values)) - 1)]
    return {"n": len(values), "p50": at(0.5), "p99": at(0.99), "max": values[-1]}


class Replica:
    def __init__(self, options, mesh=True):
        self.options, self.mesh = options, mesh
        self.port, self.sync = free_port(), free_port()
        self.url, self.publisher = f"http://127.0.0.1:{self.port}", f"tcp://127.0.0.1:{self.sync}"
        self.process = self.connection = None

    def start(self, peers=(), *flags):
        command = [self.options.pointsman, "selector", "--host", "127.0.0.1", "--port", str(self.port), *flags]
        if self.mesh:
            command += ["--replica-sync-host", "127.0.0.1", "--replica-sync-port", str(self.sync), "--advertise-url",
                        self.url]
            if peers:
                command += ["--replica-sync-peers", ",".join(peers), "--ready-requires", "index,peers"]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "POINTSMAN_"))}
        env |= {"DYN_ROUTER_USE_KV_EVENTS": "false"}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def ready(self):
        wait_for("ready selector", self.is_ready)
        return self

    def is_ready(self):
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def call(self, method, path, body=None):
        """One exchange over a kept connection."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            self.connection.connect()
            self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            head = {"content-type": "application/json"}
            self.connection.request(method, path, None if body is None else json.dumps(body), head)
            answer = self.connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            self.connection = None
            raise OSError(str(error)) from error
        return answer.status, json.loads(content) if content else None

    def register(self, model=MODEL, workers=WORKERS, first=FIRST_WORKER):
        for worker in range(first, first + workers):
            status, answer = self.call("POST", "/workers", {
                "worker_id": worker, "model_name": model, "endpoint": f"http://127.0.0.1:1/{worker}",
                "block_size": BLOCK, "max_num_batched_tokens": 8192, "total_kv_blocks": 1 << 20})
            assert status == 201, answer

    def live(self, model):
        partitions = self.call("GET", f"/loads?model_name={model}")[1]
        return sum(rank["active_requests"] for p in partitions if p["model_name"] == model for rank in p["loads"])

    def load(self, model):
        partitions = self.call("GET", f"/loads?model_name={model}")[1]
        return [(r["worker_id"], r["active_requests"], r["potential_prefill_tokens"])
                for p in partitions if p["model_name"] == model for r in p["loads"]]

    def cpu(self):
        total = 0
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/schedstat"):
            try:
                with open(path) as stat:
                    total += int(stat.read().split()[0])
            except OSError:
                pass
        return total / 1e9

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

    def stop(self):
        if self.connection:
            self.connection.close()
        if self.process:
            self.process.kill()
            self.process.wait()


class Fleet:
    """Replicas that all follow each other."""

    def __init__(self, options, count, mesh=True):
        self.replicas = [Replica(options, mesh) for _ in range(count)]

    def __enter__(self):
        try:
            everyone = {r.publisher for r in self.replicas}
            for replica in self.replicas:
                replica.start(sorted(everyone - {replica.publisher}) if replica.mesh else ())
            for replica in self.replicas:
                replica.ready()
            if len(self.replicas) > 1:
                for replica in self.replicas:
                    wait_for("mesh", lambda r=replica: self.is_meshed(r), pause=0.05)
            return self.replicas
        except BaseException:
            self.__exit__()
            raise

    def is_meshed(self, replica):
        status = replica.call("GET", "/replica_sync/status")[1]
        connected = sum(peer["state"] == "connected" for peer in status["peers"])
        return connected == len(self.replicas) - 1 == status["subscribers"]

    def __exit__(self, *_):
        for replica in self.replicas:
            replica.stop()


def offer(options, replica, seconds, *arguments):
    """`pointsman bench` against a replica; its report."""
    command = [options.pointsman, "bench", "--url", replica.url, "--json", "--duration", str(seconds), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


class Link:
    """A proxy in front of a publisher that loses the next booking message when it is told to."""

    TOPIC = b"dynamo.slot-tracker.v1"

    def __init__(self, target):
        self.target, self.lose, self.lost_at = target, threading.Event(), None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            subscriber, _ = self.listener.accept()
            try:
                publisher = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                subscriber.close()
                continue
            for one in (subscriber, publisher):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.raw, args=(subscriber, publisher), daemon=True).start()
            threading.Thread(target=self.messages, args=(publisher, subscriber), daemon=True).start()

    @staticmethod
    def raw(source, sink):
        try:
            while part := source.recv(1 << 16):
                sink.sendall(part)
        except OSError:
            pass

    def messages(self, publisher, subscriber):
        """ZMTP 3: a greeting of 64 bytes, then frames; those of one message have the flag MORE but for the last."""
        stream = publisher.makefile("rb")
        try:
            subscriber.sendall(stream.read(64))
            message = []
            while head := stream.read(1):
                flags = head[0]
                size = stream.read(8 if flags & 2 else 1)
                message.append((flags, head + size, stream.read(int.from_bytes(size, "big"))))
                if flags & 1:
                    continue
                is_booking = message[0][2].startswith(self.TOPIC) and not message[0][0] & 4
                if is_booking and self.lose.is_set():
                    self.lost_at = time.monotonic()
                    self.lose.clear()
                else:
                    subscriber.sendall(b"".join(head + body for _, head, body in message))
                message = []
        except OSError:
            pass


def loss(options, report):
    """Pairs beside each other; in each a booking and then its end is lost, over and over."""
    times, failures = [], []

    def pair(rounds, seed):
        a, b = Replica(options), Replica(options)
        try:
            a.start().ready()
            link = Link(a.sync)
            b.start([link.endpoint]).ready()
            a.register("m", 4)
            b.register("m", 4)
            wait_for("subscriber", lambda: a.call("GET", "/replica_sync/status")[1]["subscribers"] == 1)
            dice = random.Random(seed)
            for number in range(rounds):
                for method, path, body, live in [
                    ("POST", "/select_and_reserve", {"model_name": "m", "selection_id": f"r{number}",
                                                     "token_ids": list(range(64))}, 1),
                    ("DELETE", f"/reservations/r{number}", None, 0),
                ]:
                    time.sleep(dice.random() * 0.6)
                    link.lose.set()
                    assert a.call(method, path, body)[0] < 300
                    wait_for("loss", lambda: not link.lose.is_set(), pause=0.0005)
                    wait_for("repair", lambda: b.live("m") == live and b.load("m") == a.load("m"), limit=30)
                    times.append(time.monotonic() - link.lost_at)
        except Exception as error:  # noqa: BLE001, told below
            failures.append(error)
        finally:
            a.stop()
            b.stop()

    pairs = [threading.Thread(target=pair, args=(options.losses // 8, seed)) for seed in range(4)]
    for one in pairs:
        one.start()
    for one in pairs:
        one.join()
    if failures:
        raise failures[0]
    report("lost message to equal load", "s", percentiles(times))


# Replicas of a measurement of lag: more share the processor than the lag.
MOST_OF_LAG = 9


def lag(options, report):
    for count in [count for count in options.replicas if count <= MOST_OF_LAG]:
        lag_among(options, report, count)


def lag_among(options, report, count):
    with Fleet(options, count) as replicas:
        a, b = replicas[0], replicas[-1]
        for replica in replicas:
            replica.register("lag", 1, 1)
        for replica in replicas[1:]:
            replica.register()
        for rate in (0, 500, 2000):
            load = offer(options, a, options.seconds + 4, "--rate", str(rate), "--warmup", "1") if rate else None
            if load:
                time.sleep(2)
            times, until, number = [], time.monotonic() + options.seconds, 0
            while time.monotonic() < until:
                number += 1
                selection = f"lag-{rate}-{number}"
                body = {"model_name": "lag", "selection_id": selection, "token_ids": list(range(64))}
                assert a.call("POST", "/select_and_reserve", body)[0] == 200
                answered = time.monotonic()
                wait_for("mirror", lambda: b.live("lag") == 1, pause=0)
                times.append((time.monotonic() - answered) * 1e3)
                assert a.call("DELETE", f"/reservations/{selection}")[0] < 300
                answered = time.monotonic()
                wait_for("end of mirror", lambda: b.live("lag") == 0, pause=0)
                times.append((time.monotonic() - answered) * 1e3)
            status = b.call("GET", "/replica_sync/status")[1]
            if load:
                load.communicate()
            lost = sum(peer["gaps"] for peer in status["peers"])
            report(f"answered on A to shown by B of {count}, {rate} other cycles/s on A", "ms", percentiles(times) | {"gaps": lost})


def cost(options, report):
    """CPU of one cycle above that of the idle process, at a steady rate."""
    def measure(count, mesh=True):
        with Fleet(options, count, mesh) as replicas:
            publisher, others = replicas[0], replicas[1:]
            for replica in others:
                replica.register()
            time.sleep(2)
            watched = [publisher, *others[:1]]

            def spent(seconds):
                before = [r.cpu() for r in watched]
                start = time.monotonic()
                seconds()
                return [(r.cpu() - b) for r, b in zip(watched, before)], time.monotonic() - start

            idle, idle_time = spent(lambda: time.sleep(5))
            seen = {}

            def run():
                load = offer(options, publisher, options.seconds, "--rate", str(options.rate), "--warmup", "0",
                             "--client-threads", "1")
                seen.update(json.loads(load.communicate()[0]))

            busy, busy_time = spent(run)
            cycles = seen["cycles_per_second"] * options.seconds
            cycle = [(b - i / idle_time * busy_time) / cycles * 1e6 for b, i in zip(busy, idle)]
            row = {"publisher_us": cycle[0], "receiver_us": cycle[1] if others else None,
                   "publisher_idle_ms_per_s": idle[0] / idle_time * 1e3,
                   "receiver_idle_ms_per_s": idle[1] / idle_time * 1e3 if others else None,
                   "cycles_per_second": seen["cycles_per_second"], "errors": seen.get("errors")}
            if mesh and others:
                status = others[0].call("GET", "/replica_sync/status")[1]
                row["gaps"] = sum(peer["gaps"] for peer in status["peers"])
            return row

    report("no mesh", "us a cycle", measure(1, mesh=False))
    for count in options.replicas:
        report(f"{count} replicas", "us a cycle", measure(count))


def pipelined(port, requests):
    """Sends requests back to back in parts and reads all answers; each must be a success."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        stream = connection.makefile("rb")
        for start in range(0, len(requests), 64):
            part = requests[start:start + 64]
            connection.sendall(b"".join(part))
            for _ in part:
                status = stream.readline()
                assert b" 200 " in status, status
                size = 0
                while (line := stream.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split(b":")[1])
                stream.read(size)


def joiner(options, report):
    for live in options.bookings:
        with Fleet(options, 2) as (a, b):
            a.register()
            b.register()

            def booking(number):
                dice = random.Random(number)
                hashes = [dice.getrandbits(63) for _ in range(options.blocks)]
                body = json.dumps({"model_name": MODEL, "selection_id": f"j{number}", "block_hashes": hashes,
                                   "sequence_hashes": hashes, "isl_tokens": BLOCK * options.blocks}).encode()
                head = f"POST /select_and_reserve HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
                return (head + f"content-length: {len(body)}\r\n\r\n").encode() + body

            for start in range(0, live, 1000):
                pipelined(a.port, [booking(n) for n in range(start, min(live, start + 1000))])
            wait_for("equal load", lambda: b.load(MODEL) == a.load(MODEL), pause=0.1)
            before = a.cpu() + b.cpu()
            late = Replica(options)
            try:
                start = time.monotonic()
                late.start([a.publisher, b.publisher]).ready()
                ready = time.monotonic() - start
                wait_for("equal load", lambda: late.load(MODEL) == a.load(MODEL), pause=0.01)
                equal = time.monotonic() - start
                report(f"{live} live bookings of {options.blocks} blocks", "s",
                       {"ready": ready, "equal": equal, "joiner_cpu": late.cpu(),
                        "peers_cpu": a.cpu() + b.cpu() - before, "joiner_peak_mib": late.memory(),
                        "peer_peak_mib": a.memory()})
            finally:
                late.stop()


def catalog(options, report):
    """Times from the rename of the file to the moment every selector tells of its digest."""
    folder = tempfile.mkdtemp(prefix="pointsman-fleet-")
    path = os.path.join(folder, "workers.yaml")
    changes = {}  # by worker; they stay, so that a file differs from the last one in one worker

    def write(workers, changed=None):
        if changed:
            changes[changed[0]] = changed[1]
        lines = ["version: 1", f"defaults: {{model_name: {MODEL}, block_size: 16}}",
                 "workers:"]
        lines += [f"  - {{name: gpu-{n}, endpoint: \"http://10.{n >> 16}.{n >> 8 & 255}.{n & 255}:8000\", "
                  f"total_kv_blocks: {1000 + changes.get(n, 0)}}}"
                  for n in range(workers)]
        with open(path + ".new", "w") as file:
            file.write("\n".join(lines) + "\n")
        os.rename(path + ".new", path)
        return time.monotonic()

    def applied(replica):
        owners = replica.call("GET", "/catalog")[1]
        return [(o["generation"], o["digest"], o["workers"]) for o in owners["owners"] if o["generation"] is not None]

    for workers in options.endpoints:
        write(1)  # nothing is applied of a file that never had a worker
        with Fleet(options, 3) as replicas:
            source = subprocess.Popen(
                [options.pointsman, "discover", "--workers-file", path,
                 *(flag for replica in replicas for flag in ("--selector", replica.url))],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                for replica in replicas:
                    wait_for("catalog", lambda r=replica: applied(r), pause=0.05)
                time.sleep(2.5)

                def change(*arguments):
                    before = [applied(replica) for replica in replicas]
                    written = write(*arguments)
                    for replica, old in zip(replicas, before):
                        wait_for("catalog", lambda: applied(replica) != old, pause=0.001)
                    return (time.monotonic() - written) * 1e3

                report(f"{workers} endpoints to 3 selectors, through the file", "ms", {"all": change(workers)})
                dice, times = random.Random(1), []
                for number in range(options.changes):
                    time.sleep(0.05 + dice.random() * 0.3)
                    times.append(change(workers, (dice.randrange(workers), number + 1)))
                report(f"one change among {workers}, through the file", "ms", percentiles(times))
            finally:
                source.kill()
                source.wait()
    shutil.rmtree(folder)


PARTS = {"loss": loss, "lag": lag, "cost": cost, "joiner": joiner, "catalog": catalog}


def main():
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="loss, lag, cost, joiner, catalog; all by default")
    parser.add_argument("--pointsman", default="target/release/pointsman")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--seconds", type=int, default=10, help="length of a measurement of lag and cost")
    parser.add_argument("--losses", type=int, default=200)
    parser.add_argument("--rate", type=int, default=400, help="cycles a second of cost")
    parser.add_argument("--replicas", type=numbers, default=[3, 9, 32])
    parser.add_argument("--bookings", type=numbers, default=[1_000, 10_000, 100_000])
    parser.add_argument("--blocks", type=int, default=32, help="blocks of a live booking")
    parser.add_argument("--endpoints", type=numbers, default=[100, 10_000])
    parser.add_argument("--changes", type=int, default=100)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")

    def report(what, unit, values):
        if options.json:
            print(json.dumps({"what": what, "unit": unit} | values), flush=True)
            return
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        print(f"{what} ({unit}): {shown}", flush=True)

    for part in options.parts or PARTS:
        PARTS[part](options, report)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
