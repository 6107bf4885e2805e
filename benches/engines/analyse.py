"""Tables from a file of runs: what was measured, what the simulator predicts, and how sure the differences are.

Nothing here measures: the same file gives the same tables.
"""

import argparse
import collections
import json
import pathlib
import sys

import numpy

from predict import predict
from workloads import BLOCK, OUTPUT

BASELINE = "default"
WARM_UP = 10
DRAWS = 4_000
SEED = 7
MEASURES = {
    "ttft_p50": lambda rows: numpy.percentile(rows["first"], 50),
    "ttft_p90": lambda rows: numpy.percentile(rows["first"], 90),
    "ttft_p99": lambda rows: numpy.percentile(rows["first"], 99),
    "ttft_mean": lambda rows: numpy.mean(rows["first"]),
    "e2e_mean": lambda rows: numpy.mean(rows["end"]),
    "itl_mean": lambda rows: numpy.mean((rows["end"] - rows["first"]) / (OUTPUT - 1)),
    "miss_rate": lambda rows: 1 - rows["cached"].sum() / rows["prompt"].sum(),
}
# Of these an interval is given.
JUDGED = ("ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean", "e2e_mean", "itl_mean", "miss_rate")


def read(path):
    """Runs by setting and round, and calibrations by size of the cache."""
    settings, calibrations = collections.OrderedDict(), {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "calibration":
            calibrations.setdefault(record["kv_blocks"], []).append(record)
        else:
            rounds = settings.setdefault(record["setting"], collections.OrderedDict())
            rounds.setdefault(record["seed"], {})[record["policy"]] = record
    return settings, calibrations


def counted(run):
    """The requests of a run that count, by (session, turn): not those that the first tenth of the time asked for."""
    order = numpy.argsort([run["session"][i] * 1_000 + run["turn"][i] for i in range(len(run["first"]))])
    return {name: numpy.array(run[name], dtype=float)[order]
            for name in ("session", "turn", "began", "first", "end", "cached", "prompt", "worker", "predicted")}


def rounds_of(rounds, policies):
    """For each complete round, the counted requests of every policy: the same ones, in the same order."""
    out = []
    for runs in rounds.values():
        if any(policy not in runs for policy in policies):
            continue
        rows = {policy: counted(runs[policy]) for policy in policies}
        first = rows[policies[0]]
        for policy in policies[1:]:
            assert (rows[policy]["session"] == first["session"]).all() and (rows[policy]["turn"] == first["turn"]).all()
        # The first tenth of the arrivals under the baseline, whose caches and queues were filling.
        late = rows[BASELINE]["began"].argsort().argsort() >= len(first["first"]) // WARM_UP
        out.append({policy: {name: values[late] for name, values in row.items()} for policy, row in rows.items()})
    return out


def geometric(values):
    return float(numpy.exp(numpy.mean(numpy.log(values))))


def ratio(rounds, policy, measure):
    """Geometric mean over rounds of the measure as a multiple of the baseline's in the same round."""
    of = MEASURES[measure]
    return geometric([max(of(r[policy]), 1e-9) / max(of(r[BASELINE]), 1e-9) for r in rounds])


def intervals(rounds, policy, draws=DRAWS):
    """95 % intervals of the ratios by a paired bootstrap of two levels.

    A draw takes rounds with replacement, and in each round sessions with replacement, all their turns together; both
    policies are judged on the same draw.
    """
    rng = numpy.random.default_rng(SEED)
    groups = []
    for r in rounds:
        sessions = r[policy]["session"]
        groups.append([numpy.flatnonzero(sessions == session) for session in numpy.unique(sessions)])
    found = {measure: numpy.empty(draws) for measure in JUDGED}
    for draw in range(draws):
        sampled = []
        for at in rng.integers(len(rounds), size=len(rounds)):
            chosen = numpy.concatenate([groups[at][i] for i in rng.integers(len(groups[at]), size=len(groups[at]))])
            sampled.append({name: {key: rounds[at][name][key][chosen] for key in ("first", "end", "cached", "prompt")}
                            for name in (policy, BASELINE)})
        for measure in JUDGED:
            found[measure][draw] = ratio(sampled, policy, measure)
    return {measure: tuple(numpy.percentile(values, (2.5, 97.5))) for measure, values in found.items()}


def figures(rounds, policy):
    """Means over rounds."""
    table = {measure: float(numpy.mean([of(r[policy]) for r in rounds])) for measure, of in MEASURES.items()}
    table["hit_rate"] = 1 - table.pop("miss_rate")
    return table


def block_hit_rate(runs):
    """Of the complete blocks of all prompts, as the simulator counts."""
    hits = sum(sum(cached // BLOCK for cached in run["cached"]) for run in runs)
    return hits / sum(sum(prompt // BLOCK for prompt in run["prompt"]) for run in runs)


HEAD = ("policy", "TTFT p50", "p90", "p99", "mean", "end to end", "inter-token", "tokens cached", "blocks cached")


def table(rows):
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for name, row in rows:
        times = [f"{row[key]:.3f} s" for key in ("ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean", "e2e_mean")]
        cached = [f"{row[key]:.3f}" if key in row else "" for key in ("hit_rate", "block_hit_rate")]
        print("| " + " | ".join([name, *times, f"{row['itl_mean'] * 1e3:.1f} ms", *cached]) + " |")
    print()


def report(setting, runs, constants, options):
    policies = [policy for policy in ("round-robin", "default", "work-ahead") if any(policy in r for r in runs.values())]
    rounds = rounds_of(runs, policies)
    first = next(iter(runs.values()))[policies[0]]
    requests = sum(len(r[policies[0]]["first"]) for r in rounds)
    print(f"## {setting}: {first['kv_blocks']} blocks an engine, {len(rounds)} rounds, {requests} counted requests a "
          f"policy\n")
    measured = {policy: figures(rounds, policy) for policy in policies}
    for policy in policies:
        measured[policy]["block_hit_rate"] = block_hit_rate([r[policy] for r in runs.values() if policy in r])
    rows = [(policy, measured[policy]) for policy in policies]
    predicted = None
    if options.selector:
        predicted = predict(options.selector, setting, [r[policies[0]] for r in runs.values()], constants, policies)
        rows = [row for policy in policies
                for row in ((f"{policy}, measured", measured[policy]), (f"{policy}, predicted", predicted[policy][0]))]
    table(rows)
    print(f"Ratios to `{BASELINE}`, geometric mean over rounds, with 95 % intervals; for cached tokens the ratio of those "
          f"that are *not* cached.\n")
    print("| policy | " + " | ".join(JUDGED) + " | p90 by round |\n|" + "---|" * (len(JUDGED) + 2))
    for policy in policies:
        if policy == BASELINE:
            continue
        spread = intervals(rounds, policy, options.draws)
        cells = [f"{ratio(rounds, policy, m):.3f} ({spread[m][0]:.3f} to {spread[m][1]:.3f})" for m in JUDGED]
        by_round = ", ".join(f"{ratio([r], policy, 'ttft_p90'):.2f}" for r in rounds)
        print(f"| {policy}, measured | " + " | ".join(cells) + f" | {by_round} |")
        if predicted:
            ratios = predicted[policy][1]
            cells = [f"{ratios[m]:.3f}" if m in ratios else "" for m in JUDGED]
            by_round = ", ".join(f"{value:.2f}" for value in predicted[policy][2])
            print(f"| {policy}, predicted | " + " | ".join(cells) + f" | {by_round} |")
    print()
    for policy in policies:
        if policy == "round-robin":  # it does not look at caches
            continue
        exact = [numpy.mean(r[policy]["predicted"].clip(max=(r[policy]["prompt"] - 1) // BLOCK * BLOCK)
                            == r[policy]["cached"]) for r in rounds]
        share = [numpy.mean(r[policy]["worker"] == 1) for r in rounds]
        print(f"{policy}: cached tokens as the selector foretold in {100 * numpy.mean(exact):.1f} % of the requests; "
              f"share of the first engine {', '.join(f'{s:.2f}' for s in share)}")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=pathlib.Path, help="the file measure.py wrote")
    parser.add_argument("--selector", help="the pointsman binary, for the prediction")
    parser.add_argument("--draws", type=int, default=DRAWS)
    options = parser.parse_args()
    settings, calibrations = read(options.runs)
    for blocks, found in calibrations.items():
        print(f"engine with {blocks} blocks: {json.dumps(found[0]['constants'])}, median error of the fit "
              f"{found[0]['median_error']:.3f}")
    print()
    for setting, runs in settings.items():
        blocks = next(iter(next(iter(runs.values())).values()))["kv_blocks"]
        report(setting, runs, calibrations[blocks][0]["constants"], options)


if __name__ == "__main__":
    sys.exit(main())
