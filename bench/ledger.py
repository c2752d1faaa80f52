"""Holds what clients saw against the router's access log, metrics and state: each request once, and the same ending in all.

Used by kills.py, soak.py and engines.py. A [`Ledger`] gathers faults in words; none means that the books balance.
"""

import collections
import dataclasses
import json

import traffic

# How the access log may name what a client saw: (its outcome) -> troubles.
CUT_TROUBLES = {"mid_stream", "upstream_timeout"}
# What a client may see of a request that met a fault of its engine: endings of answers that name the engine, and others.
BROKEN = (traffic.CUT, traffic.HEAD_ONLY)
EXCUSES = {
    "kill": (BROKEN, ("502 upstream_broke",)),
    "restart": ((*BROKEN, traffic.ERROR_EVENT, traffic.ABORTED, f"{traffic.ENGINES_ERROR}: 500", f"{traffic.ENGINES_ERROR}: 503"),
                ("502 upstream_broke",)),
    "hang": (BROKEN, ("504 upstream_timeout",)),
    # uvicorn closes a kept connection 5 s after its last answer, also one whose next request it has not read for being stopped.
    "stall": (BROKEN, ("504 upstream_timeout", "502 upstream_broke")),
}
# A kill is over this long after the process was no more: who came later has no excuse.
KILL_SECONDS = 0.05


class Ledger:
    """The books of one run."""

    def __init__(self, fleet, client):
        self.fleet, self.requests = fleet, client.requests
        self.late_seconds = client.late_seconds
        self.wrong = []
        self.faults = [dataclasses.replace(fault, end=max(fault.begin, fault.gone) + KILL_SECONDS) if fault.kind == "kill" else fault
                       for fault in fleet.faults]
        lines = (fleet.folder / "access.jsonl").read_text().splitlines()
        self.lines = collections.defaultdict(list)
        for line in map(json.loads, lines):
            self.lines[line["request_id"]].append(line)

    def line(self, request):
        """What the access log says of a request; an empty one if it is not there."""
        return (self.lines.get(request.id) or [{}])[0]

    def outcomes(self):
        return collections.Counter(request.title() for request in self.requests)

    def fault(self, text, examples=()):
        self.wrong.append(text + "".join(f"\n    {one}" for one in list(examples)[:3]))

    def check(self, in_flight):
        """All checks that hold for every run. `in_flight` is the router's at the end."""
        self.check_never()
        self.check_log()
        self.check_metrics()
        if in_flight:
            self.fault(f"in flight at the end, by the state page: {in_flight}")
        if self.fleet.router.poll() is not None:
            self.fault(f"the router ended with {self.fleet.router.returncode}")

    def check_never(self):
        for outcome in traffic.NEVER:
            seen = [request for request in self.requests if request.outcome == outcome]
            if seen:
                self.fault(f"{outcome}: {len(seen)}", map(self.show, seen))
        unended = [request for request in self.requests if not request.outcome]
        if unended:
            self.fault(f"requests without an ending: {len(unended)}")

    def check_log(self):
        """Each request stands once in the access log and ended there as its client saw it."""
        for count, what in ((0, "missing in"), (2, "more than once in")):
            odd = [request for request in self.requests if min(len(self.lines.get(request.id, ())), 2) == count
                   and not (count == 0 and request.outcome in (traffic.LEFT, traffic.NO_CONNECTION))]
            if odd:
                self.fault(f"{what} the access log: {len(odd)}", map(self.show, odd))
        strangers = set(self.lines) - {request.id for request in self.requests}
        if strangers:
            self.fault(f"in the access log and of no client: {len(strangers)}", sorted(map(str, strangers)))
        other = [request for request in self.requests if self.lines.get(request.id) and not agrees(request, self.line(request))]
        if other:
            self.fault(f"the access log tells another ending: {len(other)}", map(self.show, other))

    def check_metrics(self):
        """Requests and errors, by kind, are counted as the access log has them."""
        page = self.fleet.metrics("kind")
        entries = [line for lines in self.lines.values() for line in lines]
        requests = page.get("prefixroute_requests_total", 0)
        if requests != len(entries):
            self.fault(f"requests counted: {requests:.0f}, in the access log: {len(entries)}")
        logged = collections.Counter(line["trouble"] for line in entries if line["trouble"])
        counted = {key[1]: int(value) for key, value in page.items() if key[0] == "prefixroute_errors_total" and value}
        if counted != logged:
            self.fault(f"errors counted: {counted}, in the access log: {dict(logged)}")
        retries = sum(max(0, line["attempts"] - 1) for line in entries)
        if page.get("prefixroute_retries_total", 0) != retries:
            self.fault(f"retries counted: {page.get('prefixroute_retries_total')}, in the access log: {retries}")
        for name in ("prefixroute_endpoint_in_flight", "prefixroute_access_log_dropped_total"):
            if page.get(name):
                self.fault(f"{name} at the end: {page[name]:.0f}")

    def check_engines(self, names):
        """The engines have nothing left either."""
        for name in names:
            figures = self.fleet.engines[name].figures()
            left = figures.get("vllm:num_requests_running", 0) + figures.get("vllm:num_requests_waiting", 0)
            if left:
                self.fault(f"{name} has {left:.0f} requests at the end")

    def check_losses(self, excuse=lambda _: None):
        """Each lost request met a fault that explains it: one of its engine's, or what `excuse` names. Gives these by request."""
        reasons = [(request, excuse(request) or self.excuse(request)) for request in self.lost()]
        without = [request for request, reason in reasons if reason is None]
        if without:
            self.fault(f"lost though no fault explains it: {len(without)}", map(self.show, without))
        return collections.Counter(reason for _, reason in reasons if reason)

    def lost(self):
        return [request for request in self.requests if request.outcome not in (traffic.WHOLE, traffic.LEFT)]

    def excuse(self, request):
        """The kind of a fault in a request's life that explains its ending; of its own engine where the answer names it."""
        title = request.title()
        for fault in self.faults:
            named, unnamed = EXCUSES.get(fault.kind, ((), ()))
            is_own = title in named and fault.engine == request.endpoint
            if fault.meets(request.sent, request.ended) and (is_own or title.endswith(unnamed)):
                return fault.kind
        return None

    def show(self, request):
        """One request in a line, beside what the access log has of it. No prompt."""
        line = self.line(request)
        seconds = f"sent {request.sent:.3f}, took {request.ended - request.sent:.3f} s"
        return (f"{request.id} {request.kind}: {request.title()} ({request.reason}), status {request.status}, {seconds}, endpoint "
                f"{request.endpoint or '-'}; log: {line.get('status')} {line.get('trouble')} {line.get('endpoint')} "
                f"attempts {line.get('attempts')}")

    def table(self):
        """Markdown: how requests ended, by what they were."""
        kinds = ("whole", "stream", "flood")
        counts = collections.Counter((request.title(), request.kind) for request in self.requests)
        rows = ["| how it ended | all | " + " | ".join(kinds) + " |", "|---|---|---|---|---|"]
        for outcome, count in self.outcomes().most_common():
            rows.append(f"| {outcome} | {count:,} | " + " | ".join(f"{counts[outcome, kind]:,}" for kind in kinds) + " |")
        total = collections.Counter(request.kind for request in self.requests)
        rows.append(f"| sent | {len(self.requests):,} | " + " | ".join(f"{total[kind]:,}" for kind in kinds) + " |")
        return "\n".join(rows)

    def verdict(self):
        """Prints what is wrong, and gives the exit code."""
        print("\nbooks: " + ("they balance" if not self.wrong else f"{len(self.wrong)} faults"))
        for text in self.wrong:
            print(f"- {text}")
        return int(bool(self.wrong))


def agrees(request, line):
    """Whether a line of the access log tells the ending that the client saw."""
    status, trouble = line["status"], line["trouble"]
    if request.outcome == traffic.LEFT:
        # It may have left after all was written.
        return trouble == "client_gone" or trouble is None or status >= 400 or trouble in CUT_TROUBLES
    if request.outcome in (traffic.CUT, traffic.HEAD_ONLY):
        return status == request.status and trouble in CUT_TROUBLES
    if request.outcome == traffic.ROUTERS_ERROR:
        return status == request.status and trouble == request.code
    return status == request.status and trouble is None and line["endpoint"] == request.endpoint


def percentile(values, share):
    """In order of size, the value below which so many are; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
