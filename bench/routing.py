#!/usr/bin/env python3
"""What every policy makes of traces, built-in workloads and made shapes, by the simulator; as Markdown tables.

    bench/routing.py --traces FOLDER > routing.md          everything; minutes on two cores
    bench/routing.py --traces FOLDER --only hard           one section: policies, hard, shapes or low
    bench/routing.py --quick --only low --only shapes      these two, with few seeds; they need no traces
    bench/routing.py --binary target/release/prefixroute   another build (default: that one); several words are one command

The traces are Mooncake's conversation and synthetic, mini-SWE and tau-bench under the names in README.md. All runs are on a
virtual clock: the same build gives the same figures on any machine, and the machine's load does not matter. Percentiles of
several seeds are means over the seeds. At the end stands every case in which the default's p95 is more than 5 % above the
best other policy's, or with old figures or bursts more than 1.5 times its own with fresh ones and single arrivals.
Exit codes: 0 measured, 1 the simulator failed, 2 usage.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT = "expected-ttft"
BASELINE = "prefix"
REPLICAS = 8
PREFILL_TOKENS_PER_SECOND = 12_000
PREFILL_OVERHEAD_SECONDS = 0.005
FLEET = ["--slots", "1", "--prefill-tps", PREFILL_TOKENS_PER_SECOND, "--eviction", "tail-first", "--decode-tps", "inf"]
WORSE = 1.05
HERDING = 1.5

# Title, file, speed, tokens of each replica's cache.
TRACES = {
    "conversation 3M": ("mooncake_conversation.jsonl", 1.5, 3_000_000),
    "synthetic 3M": ("mooncake_synthetic.jsonl", 1.0, 3_000_000),
    "mini-SWE 20k": ("miniswe_agent_bs16.jsonl", 15.0, 20_000),
    "tau-bench 20k": ("taubench_airline_bs64.jsonl", 6.0, 20_000),
    "tau-bench 100k": ("taubench_airline_bs64.jsonl", 6.0, 100_000),
}
HARD_TRACES = ["conversation 3M", "tau-bench 20k"]
METRICS_AGES = [0.1, 2, 10]
FLEET_SIZES = [3, 8, 64, 500]
DEMO3_RATE = 80
# Seconds of requests at their rate, and tokens of each replica's cache. Sessions last minutes: a shorter trace would be all
# start and end.
SHAPES = {
    "agents": (400, [100_000, 400_000]),
    "giant": (60, [100_000]),
    "unique": (200, [100_000]),
    "rag": (200, [100_000, 400_000]),
    "chat": (300, [100_000, 400_000]),
}
SHAPE_SEEDS = range(21, 26)
# Where caches overflow one request more or less decides much: the same arrivals, a few ten thousandths earlier or later, have a
# p95 up to a fifth away. So shapes are played at these speeds, and what is told is the mean.
SPEEDS = [1, 0.9997, 1.0003]
# Requests after which caches are filled.
WARM = 1_000
UTILISATIONS = [0.5, 0.7]
# Requests per second between which a shape's rate is sought, by halves: 6 find it to 7 %.
RATES = (4.0, 256.0)
HALVINGS = 6
LOW_FLEETS = [3, 8]


class SimulatorFailed(Exception):
    """The simulator could not be started, or refused; the text has its command and what it said."""


@dataclasses.dataclass(frozen=True)
class Laboratory:
    """The simulator, and how much to ask of it."""

    binary: list
    traces: pathlib.Path
    seeds: range
    policies: list
    quick: bool
    pool: concurrent.futures.Executor
    folder: pathlib.Path

    def call(self, *words):
        """Standard output of one command."""
        command = [*self.binary, *map(str, words)]
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except OSError as error:
            raise SimulatorFailed(f"{shlex.join(command)}: {error}") from error
        if ran.returncode:
            raise SimulatorFailed(f"{shlex.join(command)}: exit {ran.returncode}\n{ran.stderr}")
        return ran.stdout

    def play(self, flags, policies=None):
        """The report of each policy, by name."""
        policies = policies or self.policies
        choices = [["--policy", name] for name in policies] if policies else [[]]
        played = [json.loads(self.call("simulate", "--json", *choice, *flags)) for choice in choices]
        return {run["policy"]: run for one in played for run in one["runs"]}

    def map(self, function, cases):
        """`function` of each value, on all cores; by the same keys."""
        running = [self.pool.submit(function, case) for case in cases.values()]
        for done, one in enumerate(concurrent.futures.as_completed(running), 1):
            one.result()  # the first failure ends the section
            if sys.stderr.isatty():
                print(f"{done} of {len(running)}", end="\r", file=sys.stderr)
        return dict(zip(cases, (one.result() for one in running)))

    def trace(self, title):
        """Flags for a known trace and its cache, the speed, and how many seconds it takes at that speed."""
        file, speed, cache = TRACES[title]
        path = self.traces / file
        return [path, "--cache-tokens", cache, *FLEET], speed, arrivals(path)[-1] / speed


def arrivals(path):
    """Seconds at which the requests of a trace arrive."""
    return [float(ms) / 1e3 for ms in re.findall(r'"timestamp": *([\d.]+)', path.read_text())]


def span(ms):
    return f"{ms:.0f} ms" if ms < 1e3 else f"{ms / 1e3:.2f} s" if ms < 1e5 else f"{ms / 1e3:,.0f} s"


def percent(share):
    return f"{share * 100:.1f}"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return ["", *("| " + " | ".join(map(str, line)) + " |" for line in lines), ""]


def p95(report):
    return report["ttft_p95_ms"]


def best_other(reports):
    """Name and report of the best policy beside the default; none where there is no other."""
    others = [(p95(report), name) for name, report in reports.items() if name != DEFAULT]
    return reports[min(others)[1]] if others else None


def worse_than_others(where, reports):
    """A line where the default is clearly beaten."""
    best = best_other(reports)
    if best is None or DEFAULT not in reports or p95(reports[DEFAULT]) <= WORSE * p95(best):
        return []
    own = p95(reports[DEFAULT])
    return [f"{where}: p95 {span(own)}, {best['policy']} {span(p95(best))} ({own / p95(best):.2f} times)"]


def mean_report(reports):
    """One report of several seeds: means, of p95 the greatest beside it."""
    figures = ["hit_rate", "of_ceiling", "imbalance", "worst_window", "ttft_p50_ms", "ttft_p95_ms"]
    means = {figure: statistics.mean(report[figure] for report in reports) for figure in figures}
    return {"policy": reports[0]["policy"], "p95_greatest": max(map(p95, reports)), **means}


def mean_by_policy(plays):
    """Of several plays of all policies one."""
    return {name: mean_report([play[name] for play in plays]) for name in plays[0]}


# policies


def policy_row(report):
    greatest = [span(report["p95_greatest"])] if "p95_greatest" in report else []
    return [report["policy"], percent(report["hit_rate"]), percent(report["of_ceiling"]), f"{report['imbalance']:.2f}",
            f"{report['worst_window']:.2f}", span(report["ttft_p50_ms"]), span(p95(report)), *greatest]


def policy_table(title, reports, over_seeds=False):
    head = ["policy", "hits, %", "of ceiling, %", "imbalance", "worst window", "TTFT p50", "TTFT p95"]
    rows = [policy_row(report) for report in reports.values()]
    return [f"### {title}", *table(head + ["p95, worst seed"] * over_seeds, rows)]


def demo3_cases(seeds):
    """Flags of each variant, by title and seed."""
    for variant in ("keyed", "new-text"):
        for exact, title in (["--exact"], "caches known exactly"), ([], "caches as believed"):
            for seed in seeds:
                flags = [f"--demo3={variant}", *exact, "--demo3-rate", DEMO3_RATE, "--demo3-seed", seed]
                yield (f"demo3 {variant}, {title}", seed), flags


def demo3_plays(lab):
    """Reports over all seeds, by title."""
    played = lab.map(lab.play, dict(demo3_cases(lab.seeds)))
    titles = dict.fromkeys(title for title, _ in played)
    return {title: mean_by_policy([play for (of, _), play in played.items() if of == title]) for title in titles}


def trace_plays(lab):
    flags = {}
    for title in TRACES:
        words, speed, _ = lab.trace(title)
        flags[title] = [*words, "--speed", speed, "--replicas", REPLICAS]
    return lab.map(lab.play, flags)


def policies(lab):
    """Every policy on the built-in workload and the published traces."""
    demo3, traces = demo3_plays(lab), trace_plays(lab)
    lines = ["## Policies", "", f"demo3: means over seeds {lab.seeds[0]} to {lab.seeds[-1]}, {DEMO3_RATE} requests/s, its own fleet.",
             f"Traces: {REPLICAS} replicas of one lane, {PREFILL_TOKENS_PER_SECOND:,} tokens/s, tail first.", ""]
    for title, reports in demo3.items():
        lines += policy_table(title, reports, over_seeds=True)
    for title, reports in traces.items():
        lines += policy_table(title, reports)
    found = [line for title, reports in {**demo3, **traces}.items() for line in worse_than_others(title, reports)]
    return lines, found


# hard


def hard_cases(lab, title):
    """Flags of each case, by its name; `fresh` is what the others are compared with."""
    words, speed, length = lab.trace(title)

    def at(*flags, replicas=REPLICAS):
        return [*words, "--speed", speed * replicas / REPLICAS, "--replicas", replicas, *flags]

    cases = {"fresh": at()}
    cases |= {f"figures {age} s old": at("--metrics-age", age) for age in METRICS_AGES}
    cases["bursts of 16"] = at("--burst", 16)
    cases["bursts of 16, figures 2 s old"] = at("--burst", 16, "--metrics-age", 2)
    cases |= {f"{size} replicas": at(replicas=size) for size in FLEET_SIZES if not (lab.quick and size > REPLICAS)}
    cases["first replica half as fast"] = at("--slow-replica", 0.5)
    cases["one added midway"] = at("--add-replica-at", length / 2)
    cases["one lost midway"] = at("--lose-replica-at", length / 2)
    cases["one added at a third, one lost at two"] = at("--add-replica-at", length / 3, "--lose-replica-at", 2 * length / 3)
    return cases


def hard_cells(report, fresh):
    return [percent(report["hit_rate"]), span(p95(report)), f"{p95(report) / p95(fresh):.2f}", f"{report['imbalance']:.2f}"]


def hard_row(case, reports, fresh):
    best = best_other(reports)
    shown = [cell for name in (DEFAULT, BASELINE) for cell in hard_cells(reports[name], fresh[name])]
    return [case, *shown, f"{span(p95(best))} {best['policy']}", f"{p95(reports[DEFAULT]) / p95(best):.2f}", reports[DEFAULT]["lost"]]


def herding(title, case, reports, fresh):
    """A line where old figures or bursts cost the default too much."""
    ratio = p95(reports[DEFAULT]) / p95(fresh[DEFAULT])
    if ratio <= HERDING or not case.startswith(("figures", "bursts")):
        return []
    best = best_other(reports)
    return [f"{title}, {case}: p95 {span(p95(reports[DEFAULT]))}, {ratio:.2f} times fresh; the best other there "
            f"{best['policy']} {span(p95(best))}"]


def hard_trace(lab, title):
    plays = lab.map(lab.play, hard_cases(lab, title))
    fresh = plays["fresh"]
    head = ["case", *(f"{name} {figure}" for name in (DEFAULT, BASELINE) for figure in ("hits, %", "p95", "/ fresh", "imbalance")),
            "best other p95", f"{DEFAULT} / it", "lost"]
    rows = [hard_row(case, reports, fresh) for case, reports in plays.items()]
    found = [line for case, reports in plays.items() for line in
             herding(title, case, reports, fresh) + worse_than_others(f"{title}, {case}", reports)]
    return [f"### {title}", *table(head, rows)], found


def hard(lab):
    """Old figures, bursts, other fleets, and fleets that change."""
    lines = ["## Hard cases", "",
             "`/ fresh`: p95 over that of the first row. `--speed` grows with the replicas, so the load of each stays; the time between a",
             "conversation's turns shrinks by as much, and with 500 replicas there are few requests for each. With one replica lost or added",
             "all ratios are against the whole fleet.", ""]
    found = []
    for title in HARD_TRACES:
        more, worse = hard_trace(lab, title)
        lines += more
        found += worse
    return lines, found


# shapes


class ShapePlay(typing.NamedTuple):
    """One shape, one seed."""

    reports: dict
    warm: dict
    rate: float
    busy: float


def busy_share(report, at_seconds):
    """The share of the fleet's time that prompts take, at the pace of the middle six tenths: sessions start and end slowly."""
    count = len(at_seconds)
    pace = 0.6 * count / (at_seconds[count * 4 // 5] - at_seconds[count // 5])
    computed = (report["query_tokens"] - report["hit_tokens"]) / PREFILL_TOKENS_PER_SECOND
    return pace * (computed / count + PREFILL_OVERHEAD_SECONDS) / REPLICAS


def write_shape(lab, case, rate):
    """A trace, and flags to play it."""
    shape, cache, wanted, seed = case
    path = lab.folder / f"{shape}-{seed}-{cache}-{wanted}.jsonl"
    requests = math.ceil(rate * SHAPES[shape][0])
    lab.call("trace", "--shape", shape, "--seed", seed, "--rate", rate, "--requests", requests, "-o", path)
    return path, [path, "--cache-tokens", cache, "--replicas", REPLICAS, *FLEET]


def busy_at(lab, case, rate):
    """How busy the default's prompts keep the fleet at a rate."""
    path, flags = write_shape(lab, case, rate)
    return busy_share(lab.play(flags, [DEFAULT])[DEFAULT], arrivals(path))


def rate_for(lab, case):
    """The highest rate at which the fleet is not busier than wanted. Where caches overflow the share jumps: below the jump."""
    low, high = RATES
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if busy_at(lab, case, middle) <= case[2] else (low, middle)
    return low


def shape_play(lab, case):
    """All policies at the rate for the case, the same without the start, that rate, and how busy the fleet is."""
    rate = rate_for(lab, case)
    path, flags = write_shape(lab, case, rate)
    plays, warm = ([lab.play([*flags, "--speed", speed, *more]) for speed in SPEEDS] for more in ([], ["--warm", WARM]))
    busy = busy_share(plays[0][DEFAULT], arrivals(path))
    path.unlink()
    return ShapePlay(mean_by_policy(plays), mean_by_policy(warm), rate, busy)


def shape_name(shape, cache, wanted):
    return f"{shape}, {cache // 1000}k, {wanted:.0%}"


def ratio(reports):
    return p95(reports[DEFAULT]) / p95(best_other(reports))


def ratio_row(name, plays):
    ratios = [ratio(play.reports) for play in plays]
    rate, busy = (statistics.mean(figures) for figures in zip(*((play.rate, play.busy) for play in plays)))
    best = ", ".join(dict.fromkeys(best_other(play.reports)["policy"] for play in plays))
    warm = max(ratio(play.warm) for play in plays)
    return [name, f"{rate:.1f}", f"{busy:.0%}", *(f"{one:.2f}" for one in ratios), f"{max(ratios):.2f}", best, f"{warm:.2f}"]


def policy_cells(name, plays):
    means = mean_by_policy([play.reports for play in plays]).values()
    return [name, *(f"{span(p95(report))}, {percent(report['hit_rate'])} %" for report in means)]


def shape_tables(by_name, seeds):
    names = list(next(iter(by_name.values()))[0].reports)
    worst = max((ratio(play.reports), name, seed) for name, plays in by_name.items() for seed, play in zip(seeds, plays))
    head = ["shape", "requests/s", "busy", *(f"seed {seed}" for seed in seeds), "worst", "best other", "worst, warm"]
    return ["## Shapes", "",
            f"`trace --shape` on {REPLICAS} replicas; tokens of each cache, and how busy {DEFAULT} keeps the fleet at most: where caches",
            "overflow a little more load makes much more work, and the rate stays below that jump.", "",
            f"p95 of {DEFAULT} over that of the best other policy, by seed, each the mean of {len(SPEEDS)} plays whose arrivals differ by a few",
            f"ten thousandths; warm: without the first {WARM:,} requests.",
            *table(head, [ratio_row(name, plays) for name, plays in by_name.items()]),
            f"Worst: {worst[0]:.2f} ({worst[1]}, seed {worst[2]}).", "", "p95 and hits, means over the seeds:",
            *table(["shape", *names], [policy_cells(name, plays) for name, plays in by_name.items()])]


def shapes(lab):
    """Workloads that nothing was tuned on."""
    seeds = SHAPE_SEEDS[:1] if lab.quick else SHAPE_SEEDS
    kinds = [(shape, cache, wanted) for shape, (_, caches) in SHAPES.items() for cache in caches for wanted in UTILISATIONS]
    cases = {(shape_name(*kind), seed): (*kind, seed) for kind in kinds for seed in seeds}
    played = lab.map(lambda case: shape_play(lab, case), cases)
    by_name = {shape_name(*kind): [played[shape_name(*kind), seed] for seed in seeds] for kind in kinds}
    found = [line for (name, seed), play in played.items() for line in
             worse_than_others(f"{name}, seed {seed}", play.reports) + worse_than_others(f"{name}, seed {seed}, warm", play.warm)]
    return shape_tables(by_name, seeds), found


# low


def request(number, at_seconds, blocks, session=None):
    one = {"timestamp": at_seconds * 1e3, "input_length": len(blocks) * 64, "output_length": 50, "hash_ids": list(blocks)}
    return one | ({"session_id": session, "turn": number + 1} if session is not None else {})


def low_workloads():
    """Requests by name, and whether they should stay on one replica or spread."""
    prompt = range(32)
    again = [request(number, 2 * number, prompt) for number in range(100)]
    conversation = [request(number, 2 * number, range(16 + 3 * number), session="one") for number in range(100)]
    at_once = [request(number, 0, prompt) for number in range(64)]
    warm_at_once = [request(0, 0, prompt), *(request(number, 10, prompt) for number in range(1, 65))]
    stream = [request(number, number / 300, prompt) for number in range(3_000)]
    return {"one prompt again and again": (again, "stays"), "one conversation": (conversation, "stays"),
            "one prompt, 64 at once, cold": (at_once, "spreads"), "one prompt, 64 at once, cached on one": (warm_at_once, "spreads"),
            "one prompt, 300 a second": (stream, "spreads")}


def low_case(lab, name, requests, replicas):
    path = lab.folder / f"{name.replace(' ', '-')}.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))
    return [path, "--block-size", 64, "--cache-tokens", 100_000, "--replicas", replicas, *FLEET]


def used(report):
    return sum(count > 0 for count in report["requests"])


def low_row(name, replicas, wanted, reports):
    own = reports[DEFAULT]
    kept = (used(own) == 1) == (wanted == "stays")
    cells = [f"{used(report)}, {span(p95(report))}" for report in reports.values()]
    return kept, [name, replicas, wanted, "yes" if kept else "**no**", *cells]


def low(lab):
    """Idle fleets: what is cached on one replica stays there, and a crowd spreads."""
    workloads = low_workloads()
    cases = {(name, replicas): low_case(lab, name, requests, replicas)
             for name, (requests, _) in workloads.items() for replicas in LOW_FLEETS}
    played = lab.map(lab.play, cases)
    rows, found = [], []
    for (name, replicas), reports in played.items():
        kept, row = low_row(name, replicas, workloads[name][1], reports)
        rows.append(row)
        found += [] if kept else [f"{name}, {replicas} replicas: wanted {workloads[name][1]}, {used(reports[DEFAULT])} replicas used"]
        found += worse_than_others(f"{name}, {replicas} replicas", reports)
    head = ["workload", "replicas", f"{DEFAULT} should", "does", *next(iter(played.values()))]
    lines = ["## Low load", "", "By policy: replicas that were used, and p95. One request each 2 s unless at once; prompts of 2,048 tokens,",
             "the conversation from 1,024 tokens by 192 a turn.", *table(head, rows)]
    return lines, found


SECTIONS = {"policies": policies, "hard": hard, "shapes": shapes, "low": low}
NEED_TRACES = {"policies", "hard"}


def seed_range(text):
    first, _, last = text.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text}: found no seed, wanted FIRST-LAST")
    return seeds


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", nargs="+", default=[str(ROOT / "target/release/prefixroute")], metavar="WORD")
    parser.add_argument("--traces", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=seed_range, default=range(1001, 1041), metavar="FIRST-LAST", help="of demo3")
    parser.add_argument("--policies", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--only", action="append", choices=SECTIONS, metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="two seeds of demo3, one of each shape, no large fleets")
    options = parser.parse_args()
    options.only = options.only or list(SECTIONS)
    check(parser, options)
    return options


def check(parser, options):
    if NEED_TRACES & set(options.only):
        options.traces or parser.error("--traces: found none, wanted the folder of the traces")
        gone = sorted({file for file, _, _ in TRACES.values() if not (options.traces / file).is_file()})
        gone and parser.error(f"--traces {options.traces}: without {', '.join(gone)}")
    missing = {DEFAULT, BASELINE} - set(options.policies or [DEFAULT, BASELINE])
    if missing and options.only != ["policies"]:
        parser.error(f"--policies: without {', '.join(sorted(missing))}, which all sections but `policies` compare with")


def measure(lab, sections):
    """Prints each section as it comes, and what was found at the end."""
    found = []
    for name in sections:
        print(f"{name}: {SECTIONS[name].__doc__}", file=sys.stderr)
        lines, worse = SECTIONS[name](lab)
        print("\n".join(lines), flush=True)
        found += worse
    print("\n## Found\n\n" + ("\n".join(f"- {line}" for line in found) or "Nothing."))


def main():
    options = arguments()
    seeds = options.seeds[:2] if options.quick else options.seeds
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        lab = Laboratory(options.binary, options.traces, seeds, options.policies, options.quick, pool, pathlib.Path(folder))
        try:
            measure(lab, options.only)
        except SimulatorFailed as failed:
            pool.shutdown(cancel_futures=True)
            print(failed, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
