"""Engines that can be killed, paused and started again on their port, and a router before them.

Used by kills.py, soak.py and engines.py. Every process belongs to a [`Fleet`] and ends with it, whichever way the command
ends, stopped ones and the children of engines included.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import reloads

UP_SECONDS_MAX = 20
# Time from SIGTERM to SIGKILL, Kubernetes' own.
GRACE_SECONDS = 30
# A fault is over this long after the engine answers again: what was on its way may still end badly.
SETTLE_SECONDS = 1.0


@dataclasses.dataclass
class Fault:
    """Something done to an engine. Times are of time.monotonic()."""
    kind: str
    engine: str
    begin: float
    end: float = float("inf")
    gone: float = 0.0  # when a killed process was no more: its sockets are open until then

    def meets(self, sent, ended):
        return self.begin <= ended + 0.1 and self.end >= sent


class Engine:
    """A process that serves on a port. `{port}` in its command stands for it."""

    def __init__(self, fleet, name, port, command, ready="/metrics"):
        self.fleet, self.name, self.port, self.ready = fleet, name, port, ready
        self.command = [str(part).replace("{port}", str(port)) for part in command]
        self.process = None

    def start(self):
        log = self.fleet.folder / f"{self.name}.log"
        with log.open("a") as out:
            self.process = self.fleet.start(self.command, stdout=out, stderr=out)

    def signal(self, number):
        """To the engine and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    async def gone(self, seconds=GRACE_SECONDS):
        """Waits for its end; it and its children are killed if they take longer, as an orchestrator does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, seconds)
        self.signal(signal.SIGKILL)
        await asyncio.to_thread(self.process.wait)

    async def up(self, seconds=UP_SECONDS_MAX):
        """Waits until it answers; starts it again if its port was not free yet."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.start()
            with contextlib.suppress(OSError):
                status, _, _ = await asyncio.to_thread(reloads.ask, self.port, "GET", self.ready)
                if status == 200:
                    return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{self.name} does not answer on port {self.port}, see {self.fleet.folder}/{self.name}.log")

    @contextlib.contextmanager
    def fault(self, kind):
        """Notes a fault for as long as the block takes, and a while more."""
        noted = Fault(kind, self.name, time.monotonic())
        self.fleet.faults.append(noted)
        try:
            yield noted
        finally:
            noted.end = time.monotonic() + SETTLE_SECONDS

    async def restart(self, kind, number, down_seconds, up_seconds=UP_SECONDS_MAX):
        """Ends it by a signal, leaves it down for a while and starts it again."""
        with self.fault(kind) as noted:
            # Only a kill is for the children too: to stop them is their parent's to do.
            self.signal(number) if number == signal.SIGKILL else self.process.send_signal(number)
            await self.gone()
            noted.gone = time.monotonic()
            await asyncio.sleep(down_seconds)
            self.start()
            await self.up(up_seconds)

    async def hang(self, seconds, kind="hang"):
        with self.fault(kind):
            self.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.signal(signal.SIGCONT)

    def figures(self):
        """Its own counters and gauges, summed over labels but `finished_reason`, and when it began."""
        page = reloads.ask(self.port, "GET", "/metrics")[1]
        return series(page, ("vllm:", "process_start_time"), "finished_reason")


class Fleet:
    """All processes of a run. To be used in a `with`."""

    def __init__(self, folder, binary, seed):
        self.folder, self.binary = folder, binary
        self.chance = random.Random(seed)
        self.processes, self.faults, self.engines, self.ports = [], [], {}, set()
        self.router = self.data = self.admin = None

    def __enter__(self):
        # Both end the `with` below, as Ctrl-C does.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 40
        for process in self.processes:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, command, **streams):
        process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, **streams)
        self.processes = [one for one in self.processes if one.poll() is None] + [process]
        return process

    def port(self):
        """A free port below those that connections are given, which could take the port of an engine that is down."""
        lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for _ in range(1000):
            port = random.randrange(10_000, lowest)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    if port not in self.ports:
                        self.ports.add(port)
                        return port
        sys.exit("no free port below those of connections")

    def add(self, name, command, ready="/metrics"):
        self.engines[name] = Engine(self, name, self.port(), command, ready)
        self.engines[name].start()
        return self.engines[name]

    def add_fake(self, name):
        """A fake server that takes some time: half of a load of 200 requests a second is in flight when it is killed."""
        return self.add(name, [self.binary, "fake-server", "--name", name, "--port", "{port}", "--model", "m", "--slots", "200",
                               "--cache-blocks", "20000", "--inter-token-ms", "20", "--prefill-tokens-per-second", "200000"])

    def configuration(self, names, weights=None, extra=""):
        """The router's configuration with these engines."""
        rows = "".join(f'      - {{name: {name}, url: "http://127.0.0.1:{self.engines[name].port}", '
                       f"weight: {(weights or {}).get(name, 1)}}}\n" for name in names)
        return (f"listeners: [{{address: \"127.0.0.1:{self.data}\"}}]\nadmin: 127.0.0.1:{self.admin}\n"
                f"access_log: access.jsonl\npools:\n  - endpoints:\n{rows}{extra}")

    @property
    def file(self):
        return self.folder / "prefixroute.yaml"

    async def serve(self, extra=""):
        """Starts the router before the engines that there are."""
        self.data, self.admin = self.port(), self.port()
        for engine in self.engines.values():
            await engine.up(600)
        self.file.write_text(self.configuration(self.engines, extra=extra))
        with (self.folder / "router.log").open("w") as log:
            self.router = self.start([self.binary, "serve", "--config", self.file], stderr=log, stdout=log)
        await asyncio.to_thread(reloads.wait_for, self.admin, "/readyz")
        await asyncio.sleep(1)  # a few scrapes

    def descriptors(self):
        """The router's open descriptors, counted by what they are: files by name, connections by their other end and state."""
        names = {self.data: "clients", self.admin: "admin"} | {engine.port: engine.name for engine in self.engines.values()}
        folder, found = pathlib.Path(f"/proc/{self.router.pid}/fd"), collections.Counter()
        sockets = tcp_sockets()
        for one in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(one)
                local, remote, state = sockets.get(target, (0, 0, ""))
                name = names.get(local) or names.get(remote)
                found[f"{name}, {state}" if name else re.sub(r"\[\d+\]", "", target)] += 1
        return found

    def state(self):
        return json.loads(reloads.ask(self.admin, "GET", "/prefixroute/state")[1])

    def metrics(self, label=None):
        return series(reloads.ask(self.admin, "GET", "/metrics")[1], "prefixroute_", label)

    def logged_lines(self):
        """Lines of the access log; a thread of the router's writes them a little later than the answers."""
        with (self.folder / "access.jsonl").open("rb") as log:
            return sum(1 for _ in log)

    async def quiet(self, seconds=15):
        """Waits until the router has nothing in flight and has written its log, and gives what it then has in flight."""
        deadline = time.monotonic() + seconds
        while True:
            if self.router.poll() is not None:
                raise RuntimeError(f"the router ended with {self.router.returncode}, see {self.folder}/router.log")
            in_flight = sum(row["in_flight"] for row in self.state()["endpoints"])
            unwritten = self.metrics()["prefixroute_requests_total"] - self.logged_lines()
            if (in_flight == 0 and unwritten <= 0) or time.monotonic() > deadline:
                return in_flight
            await asyncio.sleep(0.1)


def tcp_sockets():
    """The IPv4 sockets of the machine by the target of their descriptors: local port, remote port, state."""
    states = {"01": "established", "06": "time-wait", "08": "close-wait", "0A": "listening"}
    found = {}
    for row in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()
        local, remote = (int(fields[place].split(":")[1], 16) for place in (1, 2))
        found[f"socket:[{fields[9]}]"] = local, remote, states.get(fields[3], f"state {fields[3]}")
    return found


def series(page, prefix, label):
    """Samples of a page by name, summed over all labels but one: `name` or `(name, value of that label)`."""
    found = {}
    for line in page.decode().splitlines():
        if not line.startswith(prefix):
            continue
        name, _, labels, value = re.fullmatch(r"([^{ ]+)(\{(.*)\})? (\S+)", line).groups()
        inner = re.search(rf'\b{label}="([^"]*)"', labels or "") if label else None
        key = (name, inner[1]) if inner else name
        found[key] = found.get(key, 0.0) + float(value)
    return found


def options(parser, minutes, rate=200.0, lasts="how long requests are sent"):
    """The options that all commands have."""
    parser.add_argument("--minutes", type=float, default=minutes, help=f"{lasts} ({minutes:g})")
    parser.add_argument("--rate", type=float, default=rate, help=f"requests a second, whatever the answers do ({rate:g})")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and faults (1)")
    parser.add_argument("--binary", type=pathlib.Path, default=reloads.TARGET / "release/prefixroute",
                        help="the router to be tried (target/release/prefixroute)")
    parser.add_argument("--out", type=pathlib.Path, help="folder for results and logs (a new temporary one)")


def check(parser, chosen):
    """Ends with 2 on options that make no sense."""
    if not chosen.minutes > 0 or not chosen.rate > 0:
        parser.error("--minutes and --rate: wanted more than 0")
    if not os.access(chosen.binary, os.X_OK):
        parser.error(f"--binary: {chosen.binary} is not there, build it with cargo build --release")


def play(options, run, report):
    """Runs a command in its folder and ends with its exit code. `run` gives what `report` takes after fleet and options."""
    folder = options.out or pathlib.Path(tempfile.mkdtemp(prefix="prefixroute-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    (folder / "access.jsonl").unlink(missing_ok=True)
    with Fleet(folder, options.binary.resolve(), options.seed) as fleet:
        try:
            outcome = asyncio.run(run(fleet, options))
        except (RuntimeError, OSError) as error:
            sys.exit(f"{error}")
        code = report(fleet, options, *outcome)
    print(f"results and logs: {folder}")
    sys.exit(code)
