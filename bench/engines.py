#!/usr/bin/env python3
"""Real engines stopped, killed, paused and restarted under load: what clients saw of it, and what the engines counted.

    cargo build --release && bench/engines.py --model NAME --replicas 3 \\
        --serve 'vllm serve MODEL --served-model-name NAME --host 127.0.0.1 --port {port}'
    bench/engines.py --rate 50 --minutes 0.1           # fake servers in their place

Each replica is the command of `--serve`, which stays in the foreground. Requests come at `--rate` all the time; in turn, each for
`--minutes` at least, and never before the replica answers again:

  calm          nothing
  SIGTERM       one is told to stop, and started again 5 s after it is gone
  kill          SIGKILL to one and its children, and a new start
  engine killed SIGKILL to its largest child only, as a kernel short of memory does it, then a new start (where it has children)
  stop          SIGSTOP to one and its children for 8 s
  pause         POST /pause?mode=keep to one for 8 s, then /resume (where it has that: vLLM with VLLM_SERVER_DEV_MODE=1)
  rolling       all of them, one after another: SIGTERM and a new start at once
  calm again    nothing

The books are kept as by kills.py and soak.py: each request once in the access log and the metrics with the ending that its client
saw, and no loss without a fault of its engine. Exit 0 if so, 1 if not, 2 for wrong options. Nothing but loopback; all processes
end with the command.
"""

import argparse
import asyncio
import collections
import dataclasses
import os
import pathlib
import shlex
import signal
import sys
import time

import fleet as fleets
import ledger as ledgers
import reloads
import traffic

HOLD_SECONDS = 8.0
DOWN_SECONDS = 5.0
UP_SECONDS = 300.0  # a replica loads its model
REASONS = ("stop", "length", "abort", "error")


@dataclasses.dataclass
class Phase:
    """What was done, when, and what the engines counted meanwhile."""
    name: str
    begin: float
    end: float = 0.0
    before: dict = dataclasses.field(default_factory=dict)
    after: dict = dataclasses.field(default_factory=dict)


async def nothing(_fleet, _engine):
    pass


async def terminate(_fleet, engine):
    await engine.restart("restart", signal.SIGTERM, DOWN_SECONDS, UP_SECONDS)


async def kill(_fleet, engine):
    await engine.restart("kill", signal.SIGKILL, DOWN_SECONDS, UP_SECONDS)


async def kill_child(_fleet, engine):
    children = pathlib.Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children").read_text().split()
    if not children:
        return "skipped: it has no children"
    with engine.fault("restart"):
        largest = max(children, key=lambda child: reloads.process(child)[0])
        os.kill(int(largest), signal.SIGKILL)
        await engine.gone(HOLD_SECONDS)  # vLLM's API server ends by itself
        engine.start()
        await engine.up(UP_SECONDS)


async def stop(_fleet, engine):
    await engine.hang(HOLD_SECONDS, "stall")


async def pause(_fleet, engine):
    status, _, _ = await asyncio.to_thread(reloads.ask, engine.port, "POST", "/pause?mode=keep")
    if status != 200:
        return f"skipped: /pause is answered {status}"
    with engine.fault("stall"):
        await asyncio.sleep(HOLD_SECONDS)
        await asyncio.to_thread(reloads.ask, engine.port, "POST", "/resume")


async def roll(fleet, _engine):
    for engine in fleet.engines.values():
        await engine.restart("restart", signal.SIGTERM, 0.0, UP_SECONDS)


PHASES = {"calm": nothing, "SIGTERM": terminate, "kill": kill, "engine killed": kill_child, "stop": stop, "pause": pause,
          "rolling": roll, "calm again": nothing}


async def figures(fleet):
    return {name: await asyncio.to_thread(engine.figures) for name, engine in fleet.engines.items()}


async def play(fleet, options):
    """All phases, each at another replica."""
    phases = []
    for number, (name, act) in enumerate((name, PHASES[name]) for name in options.only):
        engine = list(fleet.engines.values())[number % len(fleet.engines)]
        phase = Phase(name, time.monotonic(), before=await figures(fleet))
        phases.append(phase)
        print(f"{name}: {engine.name if act is not nothing and act is not roll else 'all'}", file=sys.stderr)
        skipped = await act(fleet, engine)
        if skipped:
            print(f"{name} {skipped}", file=sys.stderr)
            phase.name += " (skipped)"
        else:
            await asyncio.sleep(max(2.0, phase.begin + options.minutes * 60 - time.monotonic()))
        phase.end, phase.after = time.monotonic(), await figures(fleet)
    return phases


async def run(fleet, options):
    for number in range(options.replicas):
        if options.serve:
            fleet.add(f"engine-{number}", shlex.split(options.serve))
        else:
            fleet.add_fake(f"engine-{number}")
    await fleet.serve()
    client = traffic.Client(fleet.data, options.rate, options.seed, tokens=(8, 48), system_bytes=options.system_bytes, tenants=9,
                            model=options.model, checks_words=False)
    sending = asyncio.create_task(client.run(float("inf")))
    playing = asyncio.create_task(play(fleet, options))
    await asyncio.wait({sending, playing}, return_when=asyncio.FIRST_COMPLETED)
    client.until = 0.0
    phases = await playing
    await sending
    phases[-1].end = float("inf")  # the last answers
    return client, phases, await fleet.quiet()


def seen_by_clients(ledger, phases):
    rows = ["| phase | requests | answered whole | else | slowest, s | answered by |", "|---" * 6 + "|"]
    for phase in phases:
        here = [request for request in ledger.requests if phase.begin <= request.ended < phase.end]
        outcomes = collections.Counter(request.title() for request in here)
        whole = outcomes.pop(traffic.WHOLE, 0)
        other = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()) or "none"
        by = collections.Counter(request.endpoint for request in here if request.endpoint)
        slowest = max((request.ended - request.sent for request in here), default=0)
        rows.append(f"| {phase.name} | {len(here):,} | {whole:,} | {other} | {slowest:.1f} | "
                    + ", ".join(str(by[name]) for name in sorted(ledger.fleet.engines)) + " |")
    return "\n".join(rows)


def seen_by_engines(phases):
    """Finished requests by reason, of each replica; those of one that was started again count from then."""
    rows = ["| phase | replica | " + " | ".join(REASONS) + " | running, waiting at its end | hits of prompt tokens |", "|---" * 8 + "|"]
    for phase in phases:
        for name, after in phase.after.items():
            before = phase.before[name]
            again = after.get("process_start_time_seconds") != before.get("process_start_time_seconds")
            since = lambda key: after.get(key, 0) - (0 if again else before.get(key, 0))
            finished = [f"{since(('vllm:request_success_total', reason)):.0f}" for reason in REASONS]
            left = f"{after.get('vllm:num_requests_running', 0):.0f}, {after.get('vllm:num_requests_waiting', 0):.0f}"
            asked = since("vllm:prefix_cache_queries_total")
            hits = f"{since('vllm:prefix_cache_hits_total') / asked * 100:.0f} %" if asked else "-"
            rows.append(f"| {phase.name} | {name}{', anew' if again else ''} | " + " | ".join(finished) + f" | {left} | {hits} |")
    return "\n".join(rows)


def report(fleet, _options, client, phases, in_flight):
    ledger = ledgers.Ledger(fleet, client)
    ledger.check(in_flight)
    ledger.check_engines(fleet.engines)
    reasons = ledger.check_losses()
    print(f"{len(ledger.requests):,} requests at {client.rate:g}/s, {len(fleet.engines)} replicas\n\nWhat clients saw, by when it ended:\n")
    print(seen_by_clients(ledger, phases))
    print("\nWhat the engines saw:\n")
    print(seen_by_engines(phases))
    print("\nlost by: " + (", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "nothing"))
    page = fleet.metrics()
    print(f"connect failures that the router met: {page.get('prefixroute_endpoint_connect_failures_total', 0):.0f}; retries "
          f"{page.get('prefixroute_retries_total', 0):.0f}; beliefs dropped {page.get('prefixroute_belief_drops_total', 0):.0f}")
    return ledger.verdict()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fleets.options(parser, minutes=0.35, rate=6.0, lasts="how long each phase lasts at least")
    parser.add_argument("--serve", help="the command of a replica, {port} in it is its port (fake servers)")
    parser.add_argument("--model", default="m", help="the model to ask for (m, the fake servers')")
    parser.add_argument("--replicas", type=int, default=3, help="how many (3)")
    parser.add_argument("--system-bytes", type=int, default=2000, help="size of each of 9 system prompts (2000)")
    parser.add_argument("--only", default=",".join(PHASES), help="phases, in their order, with commas between (all)")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := [name for name in options.only if name not in PHASES]:
        parser.error(f"--only: found {unknown}, wanted some of {list(PHASES)}")
    if options.serve and "{port}" not in options.serve:
        parser.error("--serve: wanted {port} in it")
    if options.replicas < 2:
        parser.error("--replicas: wanted at least 2")
    fleets.check(parser, options)
    fleets.play(options, run, report)


if __name__ == "__main__":
    main()
