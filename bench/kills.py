#!/usr/bin/env python3
"""Engines killed without a word, one every other second, under a load that does not wait: what is lost, and why.

    cargo build --release && bench/kills.py [--minutes 5] [--rate 200] [--every 2] [--seed 1]
    bench/kills.py --minutes 0.5 --out kills           # a short one whose logs are kept there
    bench/kills.py --repeat                            # a second generation rather than an error

Four fake servers. Every `--every` seconds one gets SIGKILL and is started again on its port 0.1 to 1 s later. A third of the
requests are streams. A request may be lost only if the killed engine had it, which the client sees in one of these ways:

  broken in the body, visibly             the engine had answered: never a clean end, never an invented [DONE]
  broken between head and body            the same, and no token had come yet
  router's error: 502 upstream_broke      the engine had the request and died before a byte; no second generation

With `--repeat` the pool has `retry: {unanswered: true}`, and the last way is open only to requests whose second engine was
killed too or for which the pool's budget of retries was used up.

Everything else is a fault of the router, as is a request that is lost with no kill in its life, of its own endpoint where that
is known. Every request must stand once in the access log, with the same ending, and in the metrics; in flight is 0 at the end.
Exit 0 if so, 1 if not, 2 for wrong options. Nothing but loopback; all processes end with the command.
"""

import argparse
import asyncio
import collections
import signal

import fleet as fleets
import ledger as ledgers
import traffic


async def kill_on_and_on(fleet, every):
    names = sorted(fleet.engines)
    while True:
        engine, down = fleet.engines[fleet.chance.choice(names)], fleet.chance.uniform(0.1, min(1.0, every / 2))
        await asyncio.gather(asyncio.sleep(every), engine.restart("kill", signal.SIGKILL, down))


async def run(fleet, options):
    for name in "abcd":
        fleet.add_fake(name)
    await fleet.serve("    retry: {unanswered: true}\n" if options.repeat else "")
    client = traffic.Client(fleet.data, options.rate, options.seed, streams=options.streams)
    killing = asyncio.create_task(kill_on_and_on(fleet, options.every))
    sending = asyncio.create_task(client.run(options.minutes * 60))
    await asyncio.wait({killing, sending}, return_when=asyncio.FIRST_COMPLETED)
    killing.cancel()
    if killing.done() and not killing.cancelled():
        killing.result()  # an engine that did not come back
    await sending
    for engine in fleet.engines.values():
        if engine.process.poll() is not None:
            engine.start()
        await engine.up()
    return client, await fleet.quiet()


def check_repeated(ledger, denied):
    """A 502 was either tried twice or denied a second try."""
    once = [request for request in ledger.lost() if request.status == 502 and ledger.line(request).get("attempts") == 1]
    if len(once) > denied:
        ledger.fault(f"502 after one try: {len(once)}, denied another: {denied:.0f}", map(ledger.show, once))


def report(fleet, options, client, in_flight):
    ledger = ledgers.Ledger(fleet, client)
    ledger.check(in_flight)
    ledger.check_engines(fleet.engines)
    ledger.check_losses()
    kills, gone, page = ledger.faults, ledger.lost(), fleet.metrics()
    if options.repeat:
        check_repeated(ledger, page.get("prefixroute_pool_retries_denied_total", 0))
    attempts = collections.Counter(lines[0]["attempts"] for lines in ledger.lines.values())
    whole = [request for request in ledger.requests if request.outcome == traffic.WHOLE]
    print(f"{len(kills)} kills in {options.minutes:g} min, {len(ledger.requests):,} requests at {options.rate:g}/s "
          f"(at most {ledger.late_seconds:.2f} s behind), {len(gone):,} lost, {len(gone) / max(1, len(kills)):.1f} a kill\n")
    print(ledger.table())
    print(f"\nconnect failures that the router met: {page.get('prefixroute_endpoint_connect_failures_total', 0):.0f}; that clients saw: "
          f"{sum(request.code in ('unreachable', 'no_endpoint') for request in gone)}")
    print("endpoints tried for a request: " + ", ".join(f"{count:,} x {tries}" for tries, count in sorted(attempts.items())))
    first = [request.first_byte for request in whole if request.kind == "stream"]
    p50, p99 = (ledgers.percentile(first, share) * 1e3 for share in (0.5, 0.99))
    print(f"first byte of whole streams: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return ledger.verdict()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fleets.options(parser, minutes=5)
    parser.add_argument("--every", type=float, default=2.0, help="seconds from one kill to the next (2)")
    parser.add_argument("--streams", type=float, default=1 / 3, help="share of the requests that are streams (a third)")
    parser.add_argument("--repeat", action="store_true", help="let the router ask a second engine where the first died before a byte")
    options = parser.parse_args()
    fleets.check(parser, options)
    fleets.play(options, run, report)


if __name__ == "__main__":
    main()
