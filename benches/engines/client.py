"""The client: books, streams the answer, tells the selector of the first token and of the end, and keeps the times."""

import asyncio
import gc
import json
import time

import aiohttp


class Client:
    def __init__(self, http, selector_port, engine_ports):
        self.http, self.selector = http, f"http://127.0.0.1:{selector_port}"
        self.engines = [f"http://127.0.0.1:{port}" for port in engine_ports]

    async def tell(self, method, path):
        async with self.http.request(method, self.selector + path) as answer:
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path} answered {answer.status}: {await answer.text()}")

    async def book(self, prompt, output):
        body = {"model_name": "tiny", "token_ids": prompt, "expected_output_tokens": output}
        async with self.http.post(self.selector + "/select_and_reserve", json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(f"select_and_reserve answered {answer.status}: {await answer.text()}")
            return await answer.json()

    async def request(self, prompt, output):
        """One request; returns its record and the tokens of the answer."""
        began = time.monotonic()
        booking = await self.book(prompt, output)
        path = f"/reservations/{booking['selection_id']}"
        told, times, tokens = None, [], []
        usage = None
        try:
            async for chunk in self.stream(booking["worker_id"] - 1, prompt, output):
                usage = chunk.get("usage") or usage
                got = [token for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
                if got:
                    tokens += got
                    times.append(time.monotonic())
                if got and told is None:
                    told = asyncio.create_task(self.tell("POST", path + "/prefill_complete"))
        finally:
            if told is not None:
                await told
            await self.tell("DELETE", path)
        if len(tokens) != output or usage is None:
            raise RuntimeError(f"{len(tokens)} of {output} tokens came, usage {usage}")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return {"began": began, "first": times[0] - began, "end": times[-1] - began, "prompt": len(prompt),
                "cached": cached, "worker": booking["worker_id"], "predicted": booking["overlap"]["gpu"]}, tokens

    async def stream(self, engine, prompt, output):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True,
                "detokenize": False, "return_token_ids": True, "stream": True,
                "stream_options": {"include_usage": True}}
        async with self.http.post(self.engines[engine] + "/v1/completions", json=body) as answer:
            if answer.status != 200:
                raise RuntimeError(f"engine {engine} answered {answer.status}: {await answer.text()}")
            async for line in answer.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise RuntimeError(f"engine {engine}: {chunk['error']}")
                    yield chunk

    async def session(self, number, session, prefix, zero, records):
        prompt, due = list(prefix), zero + session.start
        for place, turn in enumerate(session.turns):
            prompt += turn.new
            due += turn.think
            await asyncio.sleep(due - time.monotonic())
            record, answer = await self.request(prompt, turn.output)
            record["session"], record["turn"], record["late"] = number, place, record["began"] - due
            record["began"] -= zero
            records.append(record)
            prompt += answer
            due = time.monotonic()


def connect():
    # The engine's server closes connections that were idle for 5 s; one that is just then used again would fail.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=180))


async def serve(workload, selector_port, engine_ports):
    """Runs a workload; its records in order of arrival. One failed request fails the run."""
    records = []
    gc.collect()
    gc.disable()
    try:
        async with connect() as http, asyncio.TaskGroup() as group:
            client = Client(http, selector_port, engine_ports)
            zero = time.monotonic() + 0.2
            for number, session in enumerate(workload.sessions):
                group.create_task(client.session(number, session, workload.prefixes[session.prefix], zero, records))
    finally:
        gc.enable()
    return sorted(records, key=lambda record: record["began"])
