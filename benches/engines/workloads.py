"""What the two engines are asked: sessions drawn from a seed, as token ids for the engines and as block ids for the simulator.

A later prompt of a session is the one before, the tokens the engine answered, and the tokens of the new turn. The drawn
sessions are the same for every policy, and so is the number of requests: a turn is left out when, with a usual time for
each answer, it would come after the end of the run.
"""

import dataclasses
import json
import random

BLOCK = 32
VOCABULARY = 31_000
OUTPUT = 32
# A prompt and its answer have to fit into the engine's longest sequence.
LONGEST = 4_096 - OUTPUT
# Usual time of an answer, from booking to last token, when a turn is placed in the run.
ANSWER = 0.7


@dataclasses.dataclass
class Turn:
    think: float
    """Seconds from the end of the turn before."""
    new: list
    """Tokens behind the prompt and the answer of the turn before."""
    output: int = OUTPUT


@dataclasses.dataclass
class Session:
    start: float
    prefix: int
    """Which of the workload's prefixes the first prompt begins with."""
    turns: list


@dataclasses.dataclass
class Workload:
    prefixes: list
    sessions: list

    def requests(self):
        return sum(len(session.turns) for session in self.sessions)

    def write(self, path):
        """A line a session for `pointsman simulate --sessions`, with an id for each complete block of a prompt and its answer."""
        ids, shared = {}, lambda key: ids.setdefault(key, len(ids))
        with open(path, "w", encoding="utf-8") as file:
            for number, session in enumerate(self.sessions):
                length, turns = len(self.prefixes[session.prefix]), []
                common = length // BLOCK
                for turn in session.turns:
                    length += len(turn.new)
                    # The last token of an answer is not in the cache.
                    complete = (length + turn.output - 1) // BLOCK
                    blocks = [shared(("prefix", session.prefix, i) if i < common else ("session", number, i))
                              for i in range(complete)]
                    turns.append({"think": round(turn.think, 6), "input_length": length, "output_length": turn.output,
                                  "blocks": blocks})
                    length += turn.output
                file.write(json.dumps({"start": round(session.start, 6), "turns": turns}) + "\n")


class Draw:
    def __init__(self, seed, name):
        self.random = random.Random(f"{name} {seed}")

    def tokens(self, count):
        return [self.random.randrange(10, VOCABULARY) for _ in range(count)]


# Agentic: 4 system prompts; 8 to 14 turns that each add 60 to 320 tokens; the next turn 1.5 s after an answer on average.
SYSTEMS, SYSTEM = 4, 800
FEWEST, MOST = 8, 14
LEAST_NEW, MOST_NEW = 60, 320
THINK = 1.5


def agentic(seed, sessions_per_second, seconds):
    """Sessions arrive at random; those that would be under way at the beginning are, each somewhere in its course."""
    draw = Draw(seed, "agentic")
    rng = draw.random
    prefixes = [draw.tokens(SYSTEM) for _ in range(SYSTEMS)]
    lasts = (FEWEST + MOST) / 2 * (THINK + ANSWER)
    starts = [(rng.uniform(0, THINK + ANSWER), True) for _ in range(round(sessions_per_second * lasts))]
    at = 0.0
    while (at := at + rng.expovariate(sessions_per_second)) < seconds:
        starts.append((at, False))
    sessions = []
    for start, under_way in sorted(starts):
        count = rng.randint(FEWEST, MOST)
        skipped = rng.randrange(count) if under_way else 0
        length, at, history, turns = SYSTEM, start, [], []
        for number in range(count):
            new = draw.tokens(rng.randint(LEAST_NEW, MOST_NEW))
            length += len(new)
            if length > LONGEST:
                break
            if number < skipped:
                # The prompts so far, with answers that nobody gave.
                history += new + draw.tokens(OUTPUT)
            else:
                think = rng.expovariate(1 / THINK) if turns else 0.0
                at += think
                if at > seconds:
                    break
                turns.append(Turn(think, history + new))
                at, history = at + ANSWER, []
            length += OUTPUT
        if turns:
            sessions.append(Session(start, rng.randrange(SYSTEMS), turns))
    return Workload(prefixes, sessions)


# Tenants: each has a prompt of 1,024 tokens of its own; how often they come follows Zipf's law.
TENANTS, TENANT, EXPONENT = 60, 1_024, 0.9
QUESTION, SIGMA, LEAST_QUESTION, MOST_QUESTION = 160, 0.8, 16, 1_024


def tenants(seed, requests_per_second, seconds):
    draw = Draw(seed, "tenants")
    rng = draw.random
    prefixes = [draw.tokens(TENANT) for _ in range(TENANTS)]
    weights = [1 / (rank + 1) ** EXPONENT for rank in range(TENANTS)]
    sessions, at = [], 0.0
    while (at := at + rng.expovariate(requests_per_second)) < seconds:
        question = round(QUESTION * rng.lognormvariate(-SIGMA * SIGMA / 2, SIGMA))
        question = min(max(question, LEAST_QUESTION), MOST_QUESTION)
        prefix = rng.choices(range(TENANTS), weights)[0]
        sessions.append(Session(at, prefix, [Turn(0.0, draw.tokens(question))]))
    return Workload(prefixes, sessions)
