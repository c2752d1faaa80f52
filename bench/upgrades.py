#!/usr/bin/env python3
"""Binary upgrades and SIGTERM drains under load: requests that clients lose.

    cargo build --release && bench/upgrades.py [--rounds 20] [--pause 0.5] [--drain-delay 1s]

Three fake servers. Meanwhile four kinds of clients, all of which count whatever is not a whole answer of status 200 as failed:
busy ones (a request right after the other on one connection), rare ones (up to two seconds between two requests on one
connection; like a pool they look whether it was closed before they send), new ones (a connection for each request) and streams
(of a second or so). They open another connection when an answer says `Connection: close`, and try no request twice.

Upgrades: one address. Each round starts `serve --upgrade`, sends SIGQUIT to the router that serves, and waits for its end.
Drains: two routers behind what stands for a Kubernetes Service: new connections go to those whose `/readyz` was 200 when it was
last looked at, every 100 ms. Each round sends SIGTERM to one of them in turn, waits for its end and starts it anew. With
`--drain-delay 0s` connections are refused until the next look, as they would be in Kubernetes: that they count shows that the
clients look.

All loads go to loopback and end by themselves. Exit 1 if a request failed or a router did not exit 0.
"""

import argparse
import http.client
import itertools
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

import cost
from reloads import PATH, TARGET, ask, chat, wait_for

BINARY = TARGET / "release/prefixroute"
KINDS = {"busy": 6, "rare": 6, "new": 3, "stream": 6}


class Service:
    """Where new connections go: addresses whose router was ready at the last look."""

    def __init__(self, routers):
        self.routers, self.ready, self.turn = routers, list(routers), itertools.count()
        self.done = threading.Event()

    def look(self):
        while not self.done.wait(0.1):
            self.ready = [router for router in self.routers if is_ready(router[1])] or self.ready

    def port(self):
        ready = self.ready
        return ready[next(self.turn) % len(ready)][0]


def is_ready(admin):
    try:
        return ask(admin, "GET", "/readyz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


class Client(threading.Thread):
    def __init__(self, kind, number, service):
        super().__init__(daemon=True)
        self.kind, self.number, self.service = kind, number, service
        self.answered, self.failed, self.connection = 0, [], None

    def run(self):
        chance = random.Random(self.number)
        while not self.service.done.is_set():
            if self.kind == "rare":
                self.service.done.wait(chance.uniform(0, 2))
            try:
                self.request()
                self.answered += 1
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failed.append(f"{time.strftime('%X')} {self.kind}: {error!r}")
                self.drop()

    def request(self):
        stream = self.kind == "stream"
        if self.connection and select.select([self.connection.sock], [], [], 0)[0]:
            self.drop()  # closed while nobody used it
        if not self.connection:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.service.port(), timeout=60)
        headers = {"content-type": "application/json"}
        self.connection.request("POST", PATH, chat(f"{self.kind} {self.number}", stream, 100 if stream else 2), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200 or stream and not text.rstrip().endswith(b"data: [DONE]"):
            raise ValueError(f"status {answer.status}, {len(text)} bytes")
        if answer.will_close or self.kind == "new":
            self.drop()

    def drop(self):
        if self.connection:
            self.connection.close()
        self.connection = None


def configuration(engines, data, admin, folder, delay):
    rows = "".join(f'      - {{name: e{number}, url: "http://127.0.0.1:{port}"}}\n' for number, port in enumerate(engines))
    return (f"listeners: [{{address: \"127.0.0.1:{data}\"}}]\nadmin: 127.0.0.1:{admin}\ndrain_delay: {delay}\n"
            f"upgrade_socket: {folder}/upgrade.sock\npools:\n  - endpoints:\n{rows}")


class Routers:
    """Starts routers, and ends those that are left."""

    def __init__(self, folder, engines, delay):
        self.folder, self.engines, self.delay, self.started, self.logs = folder, engines, delay, [], itertools.count()

    def addresses(self):
        return cost.free_port(), cost.free_port()

    def start(self, data, admin, *flags):
        file = self.folder / f"{data}.yaml"
        file.write_text(configuration(self.engines, data, admin, self.folder, self.delay))
        log = self.folder / f"{next(self.logs)}.log"
        process = subprocess.Popen([BINARY, "serve", "--config", file, *flags], stderr=log.open("w"))
        process.log = log
        self.started.append(process)
        return process


def says_serving(process):
    deadline = time.monotonic() + 30
    while '"serving"' not in process.log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the new router does not serve: {process.log.read_text()[-500:]}")
        time.sleep(0.005)


def upgrades(routers, rounds, pause):
    address = routers.addresses()
    serving = routers.start(*address)
    wait_for(address[1], "/readyz")

    def one():
        nonlocal serving
        new = routers.start(*address, "--upgrade")
        began = time.monotonic()
        serving.send_signal(signal.SIGQUIT)
        says_serving(new)
        took = time.monotonic() - began
        code, serving = serving.wait(timeout=60), new
        return took, code

    return measured("upgrades, from SIGQUIT until the new one serves", Service([address]), one, rounds, pause)


def drains(routers, rounds, pause):
    addresses = [routers.addresses(), routers.addresses()]
    running = [routers.start(*address) for address in addresses]
    for address in addresses:
        wait_for(address[1], "/readyz")
    service, turns = Service(addresses), itertools.cycle([0, 1])

    def one():
        place = next(turns)
        began = time.monotonic()
        running[place].send_signal(signal.SIGTERM)
        code = running[place].wait(timeout=60)
        took = time.monotonic() - began
        running[place] = routers.start(*addresses[place])
        wait_for(addresses[place][1], "/readyz")
        time.sleep(0.3)  # seen by the service
        return took, code

    return measured("drains, from SIGTERM to the end", service, one, rounds, pause)


def measured(name, service, one, rounds, pause):
    clients = [Client(kind, number, service) for kind, count in KINDS.items() for number in range(count)]
    looking = threading.Thread(target=service.look, daemon=True)
    [thread.start() for thread in [looking, *clients]]
    time.sleep(1)
    took, codes = [], []
    for _ in range(rounds):
        time.sleep(pause)
        seconds, code = one()
        took.append(seconds)
        codes.append(code)
    time.sleep(1)
    service.done.set()
    [thread.join(timeout=70) for thread in [looking, *clients]]
    by_kind = {kind: sum(client.answered for client in clients if client.kind == kind) for kind in KINDS}
    failed = [failure for client in clients for failure in client.failed]
    took.sort()
    print(f"{rounds} {name}: median {took[len(took) // 2]:.2f} s, slowest {took[-1]:.2f} s; exit codes {sorted(set(codes))}")
    print(f"  answered {sum(by_kind.values())} {by_kind}, failed {len(failed)}")
    for failure in failed[:10]:
        print(f"  {failure}")
    return bool(failed) or any(codes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--drain-delay", default="1s")
    options = parser.parse_args()
    started = []
    with tempfile.TemporaryDirectory() as folder:
        routers = None
        try:
            engines = [cost.free_port() for _ in range(3)]
            for number, port in enumerate(engines):
                started.append(subprocess.Popen([BINARY, "fake-server", "--name", f"e{number}", "--port", str(port), "--model", "m",
                                                 "--slots", "200", "--cache-blocks", "20000", "--inter-token-ms", "10",
                                                 "--prefill-tokens-per-second", "200000"],
                                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            for port in engines:
                wait_for(port)
            os.chmod(folder, 0o700)
            routers = Routers(pathlib.Path(folder), engines, options.drain_delay)
            lost = [part(routers, options.rounds, options.pause) for part in (upgrades, drains)]
            sys.exit(int(any(lost)))
        finally:
            for one in started + (routers.started if routers else []):
                one.terminate()
            for one in started + (routers.started if routers else []):
                one.wait(timeout=60)


if __name__ == "__main__":
    main()
