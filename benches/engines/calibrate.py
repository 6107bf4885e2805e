"""What an engine is in the simulator's terms: times of its steps, found with one request or a few at a time on each engine."""

import asyncio
import time

import numpy

import client
from fleet import BUDGET
from workloads import BLOCK, Draw

PROMPTS = (64, 192, 320, 448, 512, 1_024, 2_048, 3_072)
REPEATS = 5
# Sequences that decode at once, and the prompt of each.
DECODES = ((1, 64), (1, 1_024), (1, 3_072), (2, 64), (4, 64), (4, 1_024), (8, 64))
TOKENS = 48


def pairs(prompt):
    """Pairs of a prompt token and a token before it, as the simulator's engine counts them."""
    return prompt * prompt / 2


async def prefills(it, draw, engine):
    """Seconds to the first token of prompts nobody has cached, with their tokens."""
    rows = []
    for _ in range(REPEATS):
        for prompt in PROMPTS:
            record = await it.direct(engine, draw.tokens(prompt), 1)
            rows.append((prompt, record["first"]))
    return rows


async def decodes(it, draw, engine):
    """Seconds between two tokens, with the sequences and the context of all of them."""
    rows = []
    for _ in range(REPEATS):
        for sequences, prompt in DECODES:
            prompts = [draw.tokens(prompt) for _ in range(sequences)]
            for tokens in prompts:  # cached, so that all of them start to decode together
                await it.direct(engine, tokens, 1)
            answers = await asyncio.gather(*(it.direct(engine, tokens, TOKENS) for tokens in prompts))
            times = answers[-1]["times"]
            # The first steps compute what is left of the prompts.
            gaps = numpy.diff(times)[4:]
            rows.append((sequences, sequences * (prompt + TOKENS / 2), float(numpy.median(gaps))))
    return rows


async def event_delay(it, draw):
    """Seconds from the first token to when the selector knows the blocks."""
    delays = []
    for _ in range(10):
        tokens = draw.tokens(2 * BUDGET)
        record = await it.direct(0, tokens, 1)
        began = record["times"][0]
        while await it.device_blocks(tokens) < len(tokens) // BLOCK:
            if time.monotonic() - began > 10:
                raise RuntimeError("the selector does not hear of blocks")
            await asyncio.sleep(0.001)
        delays.append(time.monotonic() - began)
    return delays


class Direct(client.Client):
    """Requests that no selector chose a worker for."""

    async def direct(self, engine, prompt, output):
        began, times = time.monotonic(), []
        async for chunk in self.stream(engine, prompt, output):
            if any(choice.get("token_ids") for choice in chunk["choices"]):
                times.append(time.monotonic())
        return {"first": times[0] - began, "times": times}

    async def device_blocks(self, tokens):
        async with self.http.post(self.selector + "/overlap_scores",
                                  json={"model_name": "tiny", "token_ids": tokens}) as answer:
            return max(row["device_blocks"] for row in (await answer.json())["workers"])


def medians(rows):
    """The median of all repeats of a case: a busy moment of the machine decides nothing."""
    cases = {}
    for *case, seconds in rows:
        cases.setdefault(tuple(case), []).append(seconds)
    return [(case, float(numpy.median(found))) for case, found in cases.items()]


def fit(prefill, decode):
    """Constants of the simulator's step and the time of a request outside of steps, by least squares.

    step = base + tokens x per_token + pairs x attention + context x decode_context; a first token takes `outside` more.
    """
    rows, times = [], []
    for (prompt,), seconds in medians(prefill):
        steps = -(-prompt // BUDGET)
        rows.append((steps, prompt, pairs(prompt), 0.0, 1.0))
        times.append(seconds)
    for (sequences, context), seconds in medians(decode):
        rows.append((1.0, sequences, 0.0, context, 0.0))
        times.append(seconds)
    # Relative errors, so that long prompts do not decide alone.
    weights = 1 / numpy.array(times)
    matrix, times = numpy.array(rows), numpy.array(times)
    scale = numpy.abs(matrix).max(axis=0)
    solution = numpy.linalg.lstsq(matrix / scale * weights[:, None], times * weights, rcond=None)[0] / scale
    errors = matrix @ solution / times - 1
    names = ("base", "per_token", "attention", "decode_context", "outside")
    return dict(zip(names, (max(float(value), 0.0) for value in solution), strict=True)), errors


async def both(part, it, draw, engines):
    """The same on all engines at once: they share the machine's memory when they serve, too."""
    return sum(await asyncio.gather(*(part(it, draw, engine) for engine in range(engines))), [])


async def measure(selector_port, engine_ports, seed):
    draw = Draw(seed, "calibration")
    async with client.connect() as http:
        it = Direct(http, selector_port, engine_ports)
        for engine in range(len(engine_ports)):  # the first requests of an engine are slower
            for _ in range(3):
                await it.direct(engine, draw.tokens(2 * BUDGET), 8)
        return (await both(prefills, it, draw, len(engine_ports)), await both(decodes, it, draw, len(engine_ports)),
                await event_delay(it, draw))


def calibrate(selector, engines, seed):
    """The constants, as a record for the file of runs."""
    prefill, decode, delays = asyncio.run(measure(selector.port, [engine.port for engine in engines], seed))
    constants, errors = fit(prefill, decode)
    constants["event_delay"] = float(numpy.median(delays))
    return {"kind": "calibration", "at_once": len(engines), "constants": constants,
            "worst_error": float(numpy.abs(errors).max()), "median_error": float(numpy.median(numpy.abs(errors))),
            "prefill": [(p, round(s, 5)) for p, s in prefill],
            "decode": [(n, int(c), round(s, 5)) for n, c, s in decode],
            "event_delays": [round(delay, 4) for delay in delays]}


