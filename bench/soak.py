#!/usr/bin/env python3
"""Minutes of mixed traffic while engines die, hang and misbehave, configurations change and floods come: do the books balance?

    cargo build --release && bench/soak.py [--minutes 10] [--rate 200] [--seed 1] [--out FOLDER]
    bench/soak.py --minutes 1 --out /tmp/soak      # a short one, results in /tmp/soak

Four fake servers, a fifth that reloads bring in and take out, and stub_engine.py, half of whose requests meet resets, cut
answers, garbage, errors or slowness. All the time: whole answers and streams of 24 tenants, and clients that leave. One after
another, by chance: SIGKILL and a new start, SIGTERM and a new start, SIGSTOP for 2 to 7 s (time-outs are 4 s), a flood of prompts
that were never seen at twice the rate, reloads by POST, by SIGHUP and by the file alone, one in five of them broken.

At the end: every request has one ending, which the client, the access log and the metrics agree on; each that was lost met a
fault of its engine; nothing is in flight; memory and descriptors are flat: the mean of the run's last quarter is at most 10 % or
8 MiB (16 descriptors) above the second quarter's, which runs of less than 3 min are too short for; at rest there are as many
descriptors as before.

Writes samples.csv (each second), faults.csv and soak.svg into --out. Exit 0 if all holds, 1 if not, 2 for wrong options. Nothing
but loopback; all processes end with the command.
"""

import argparse
import asyncio
import csv
import json
import pathlib
import signal
import statistics
import sys
import time

import chart
import fleet as fleets
import ledger as ledgers
import reloads
import traffic

TIMEOUTS = "    timeouts: {first_byte: 4s, idle: 4s}\n"
STAY = "abcd"  # engines that faults are done to
# What a client may see of a request that met a fault of the stub; of the others nothing at all.
STUB_ENDINGS = {
    "reset before the answer": ("502 upstream_broke",), "end before the answer": ("502 upstream_broke",),
    "half a head": ("502 upstream_broke",), "garbage": ("502 upstream_broke",),
    "head only": (traffic.HEAD_ONLY,), "reset in the body": ledgers.BROKEN, "end in the body": ledgers.BROKEN,
    "short of its length": ledgers.BROKEN,
    "500": (f"{traffic.ENGINES_ERROR}: 500",), "503": (f"{traffic.ENGINES_ERROR}: 503",),
}
# A pooled connection that ends so soon is taken for one that was dead before, and its request is sent again.
RESENT_SECONDS_MAX = 0.25
# Shorter runs are not judged by their memory: one fault more in their last quarter would decide.
FLAT_SECONDS_MIN = 180
# Descriptors at rest that may be more than before: an engine that a reload brought in, a scrape under way.
REST_MAX = 8
REST_SECONDS_MAX = 20


class Soak:
    """One run: the fleet, its client, and what was noted on the way."""

    def __init__(self, fleet, options):
        self.fleet, self.options, self.chance = fleet, options, fleet.chance
        self.client = self.started = None
        self.samples, self.wrong = [], []
        self.rest = []  # descriptors before and after the load
        self.names, self.weights = [*STAY, "stub"], {}
        self.reloading = asyncio.Lock()

    async def run(self):
        fleet, options = self.fleet, self.options
        record = fleet.folder / "stub.jsonl"
        record.unlink(missing_ok=True)
        for name in [*STAY, "e"]:
            fleet.add_fake(name)
        fleet.add("stub", [sys.executable, pathlib.Path(__file__).with_name("stub_engine.py"), "--port", "{port}", "--name", "stub",
                           "--seed", options.seed, "--record", record, "--wrong", options.wrong])
        await fleet.serve(extra=TIMEOUTS)
        await self.reload("reload")  # without e
        self.rest.append(fleet.descriptors())
        self.client = traffic.Client(fleet.data, options.rate, options.seed, leaves=options.leaves)
        self.started = time.monotonic()
        sending = asyncio.create_task(self.client.run(options.minutes * 60))
        others = [asyncio.create_task(one) for one in (self.sample(), self.harm())]
        await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        for result in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await sending
        for engine in fleet.engines.values():
            engine.signal(signal.SIGCONT)
            if engine.process.poll() is not None:
                engine.start()
            await engine.up()
        in_flight = await fleet.quiet()
        self.rest.append(await self.at_rest())
        return in_flight

    async def at_rest(self):
        """Descriptors once connections to engines have been closed, which is 3 s after their last use."""
        deadline = time.monotonic() + REST_SECONDS_MAX
        while True:
            await asyncio.sleep(1)
            found = self.fleet.descriptors()
            if found.total() <= self.rest[0].total() or time.monotonic() > deadline:
                return found

    async def sample(self):
        """Memory, descriptors and endings, once a second."""
        second = 0
        while True:
            second += 1
            await asyncio.sleep(max(0.0, self.started + second - time.monotonic()))
            mib, files = await asyncio.to_thread(reloads.process, self.fleet.router.pid)
            whole, lost = self.client.whole, self.client.ended - self.client.whole
            last = self.samples[-1] if self.samples else {"whole": 0, "lost": 0}
            self.samples.append({
                "second": round(time.monotonic() - self.started, 2), "rss_mib": round(mib, 2), "descriptors": files,
                "whole": whole, "lost": lost, "outstanding": len(self.client.tasks),
                "whole_s": whole - last["whole"], "lost_s": lost - last["lost"]})

    async def harm(self):
        """One fault after another; some go on while the next begins."""
        going = set()
        choices = [self.kill, self.restart, self.hang, self.flood, self.reload_post, self.reload_hup, self.reload_file]
        try:
            while True:
                await asyncio.sleep(self.chance.uniform(0.5, 1.5) * self.options.every)
                one = asyncio.create_task(self.chance.choice(choices)())
                going.add(one)
                for done in [task for task in going if task.done()]:
                    going.discard(done)
                    done.result()
        finally:
            for task in going:
                task.cancel()
            await asyncio.gather(*going, return_exceptions=True)

    def victim(self):
        """An engine that nothing is being done to, if half of them are well."""
        now = time.monotonic()
        well = [name for name in STAY if not any(fault.engine == name and fault.end > now for fault in self.fleet.faults)]
        return self.fleet.engines[self.chance.choice(well)] if len(well) > 2 else None

    async def kill(self):
        if engine := self.victim():
            await engine.restart("kill", signal.SIGKILL, self.chance.uniform(0.1, 1.5))

    async def restart(self):
        if engine := self.victim():
            await engine.restart("restart", signal.SIGTERM, self.chance.uniform(0.1, 1.5))

    async def hang(self):
        if engine := self.victim():
            await engine.hang(self.chance.uniform(2.0, 7.0))

    async def flood(self):
        if self.client.flooding:
            return
        self.client.flooding = True
        noted = self.note("flood")
        try:
            await asyncio.sleep(5)
        finally:
            self.client.flooding = False
            noted.end = time.monotonic()

    def note(self, kind):
        now = time.monotonic()
        self.fleet.faults.append(fleets.Fault(kind, "", now, now))
        return self.fleet.faults[-1]

    def change(self):
        """The next configuration: e comes or goes, a weight changes, or it is broken. Gives its text and whether it is right."""
        if self.chance.random() < 0.2:
            return self.fleet.configuration(self.names, extra=TIMEOUTS) + "frobnicate: 1\n", False
        if self.chance.random() < 0.6:
            self.names = [*STAY, "stub"] + ([] if "e" in self.names else ["e"])
        else:
            self.weights = {self.chance.choice(STAY): self.chance.choice((0.5, 1, 2))}
        return self.fleet.configuration(self.names, self.weights, TIMEOUTS), True

    async def reload_post(self):
        await self.reload("reload", *self.change())

    async def reload(self, kind, text=None, right=True):
        async with self.reloading:
            self.fleet.file.write_text(text or self.fleet.configuration(self.names, self.weights, TIMEOUTS))
            noted = self.note(kind)
            status, answer, _ = await asyncio.to_thread(reloads.ask, self.fleet.admin, "POST", "/prefixroute/reload")
            noted.end = time.monotonic()
            if status != (200 if right else 422):
                self.wrong.append(f"a {'right' if right else 'broken'} configuration was answered {status}: {answer[:200]}")

    async def reload_hup(self):
        async with self.reloading:
            await self.taken_up(lambda: self.fleet.router.send_signal(signal.SIGHUP))

    async def reload_file(self):
        async with self.reloading:
            await self.taken_up(lambda: None)

    async def taken_up(self, tell):
        """A right change is at work within its time, a broken one is told of."""
        text, right = self.change()
        self.fleet.file.write_text(text)
        noted = self.note("reload")
        tell()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            page = await asyncio.to_thread(self.fleet.metrics)
            if (page["prefixroute_config_in_sync"] == 1) == right:
                noted.end = time.monotonic()
                return
            await asyncio.sleep(0.1)
        self.wrong.append(f"a {'right' if right else 'broken'} file was not taken up in 10 s")


def stub_excuse(request, met):
    """The fault of the stub that explains a request's ending, of those that it met there."""
    endings = {fault: STUB_ENDINGS.get(fault, ()) for fault in met.get(request.id, ())}
    return next((f"stub: {fault}" for fault, known in endings.items() if request.title().endswith(known)), None)


def read_stub(folder):
    """Faults that each request met at the stub, and the seconds between the first two times that one came."""
    met, times = {}, {}
    for line in map(json.loads, (folder / "stub.jsonl").read_text().splitlines()):
        met.setdefault(line["id"], []).append(line["fault"])
        times.setdefault(line["id"], []).append(line["at"])
    return met, {name: seen[1] - seen[0] for name, seen in times.items() if len(seen) > 1}


def check_flat(ledger, samples, key, share, room):
    """Compares the last quarter of a run with the second one."""
    quarter = max(1, len(samples) // 4)
    second, last = (statistics.mean(sample[key] for sample in part) for part in (samples[quarter:2 * quarter], samples[-quarter:]))
    print(f"{key}: {samples[0][key]:g} at first, {second:.1f} in the second quarter, {last:.1f} in the last one, "
          f"at most {max(sample[key] for sample in samples):g}")
    if len(samples) >= FLAT_SECONDS_MIN and last > max(second * (1 + share), second + room):
        ledger.fault(f"{key} is not flat: {second:.1f} -> {last:.1f}")


def write(folder, soak):
    """The files of the run: samples, faults and the picture."""
    with (folder / "samples.csv").open("w", newline="") as out:
        rows = csv.DictWriter(out, list(soak.samples[0]))
        rows.writeheader()
        rows.writerows(soak.samples)
    faults = [(fault.kind, fault.engine, fault.begin - soak.started, fault.end - soak.started) for fault in soak.fleet.faults
              if fault.begin >= soak.started]
    with (folder / "faults.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("kind", "engine", "begin_s", "end_s"), *faults])
    curve = lambda key: [(sample["second"], sample[key]) for sample in soak.samples]
    seconds = soak.samples[-1]["second"]
    settle = lambda kind: fleets.SETTLE_SECONDS if kind in ledgers.EXCUSES else 0
    chart.draw(folder / "soak.svg", f"soak: {soak.options.minutes:g} min at {soak.options.rate:g} requests/s", [
        ("requests a second", {"answered whole": curve("whole_s"), "lost, or left by the client": curve("lost_s")}),
        ("resident memory of the router, MiB", {"RSS": curve("rss_mib")}),
        ("open descriptors of the router", {"descriptors": curve("descriptors")}),
        ("requests in flight", {"at the client": curve("outstanding")}),
    ], [(kind, begin, min(end - settle(kind), seconds)) for kind, _, begin, end in faults], seconds)


async def run(fleet, options):
    soak = Soak(fleet, options)
    return soak, await soak.run()


def report(fleet, options, soak, in_flight):
    write(fleet.folder, soak)
    ledger = ledgers.Ledger(fleet, soak.client)
    ledger.check(in_flight)
    ledger.check_engines([*STAY, "e"])
    for text in soak.wrong:
        ledger.fault(text)
    stub, twice = read_stub(fleet.folder)
    reasons = ledger.check_losses(lambda request: stub_excuse(request, stub))
    late = {name: seconds for name, seconds in twice.items() if seconds > RESENT_SECONDS_MAX}
    if late:
        ledger.fault(f"sent a second time after the engine had worked on it: {len(late)}", map(str, late.items()))
    done = {kind: sum(fault.kind == kind for fault in fleet.faults) for kind in ("kill", "restart", "hang", "flood", "reload")}
    print(f"{options.minutes:g} min, {len(ledger.requests):,} requests at {options.rate:g}/s (at most {ledger.late_seconds:.2f} s behind): "
          + ", ".join(f"{count} {kind}s" for kind, count in done.items()) + "\n")
    print(ledger.table() + "\n\n| lost by | requests |\n|---|---|")
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count:,} |")
    print(f"\nsent twice to the stub because a kept connection ended at once: {len(twice) - len(late)}")
    check_flat(ledger, soak.samples, "rss_mib", 0.1, 8)
    check_flat(ledger, soak.samples, "descriptors", 0.1, 16)
    before, after = soak.rest
    print(f"descriptors at rest: {before.total()} before, {after.total()} after; in flight at the end: {in_flight}")
    if after.total() > before.total() + REST_MAX:
        ledger.fault(f"descriptors that nobody gave back: {before.total()} -> {after.total()}",
                     [f"more: {dict(after - before)}", f"fewer: {dict(before - after)}"])
    return ledger.verdict()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    fleets.options(parser, minutes=10)
    parser.add_argument("--every", type=float, default=2.5, help="seconds between two faults, in the mean (2.5)")
    parser.add_argument("--wrong", type=float, default=0.5, help="share of the stub's requests that meet a fault (0.5)")
    parser.add_argument("--leaves", type=float, default=0.02, help="share of the clients that leave within 0.4 s (0.02)")
    options = parser.parse_args()
    fleets.check(parser, options)
    fleets.play(options, run, report)


if __name__ == "__main__":
    main()
