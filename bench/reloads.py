#!/usr/bin/env python3
"""Reloads under load: what clients lose, what the router forgets, what it grows by.

    cargo build --release && bench/reloads.py [--reloads 1000] [--seconds 60] [--streams 16]

Needs oha. Four fake servers; the router reads its configuration from a file that is rewritten before each `POST
/prefixroute/reload`: an endpoint added, its weight changed, the endpoint removed, nothing changed, a broken file, in turn.
Meanwhile oha sends chats over 64 connections, and streams are held open one after another. At the end: requests that failed,
streams that were cut, prompts that lost their belief, memory and descriptors. All loads go to loopback and end by themselves.
Exit 1 if anything was lost.
"""

import argparse
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import cost

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PATH = "/v1/chat/completions"


def wait_for(port, path="/metrics"):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if ask(port, "GET", path)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"nothing answers on port {port}")


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"content-type": "application/json"} if body else {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text, answer.headers


def chat(prompt, stream=False, tokens=8):
    return json.dumps({"model": "m", "stream": stream, "max_tokens": tokens,
                       "messages": [{"role": "system", "content": f"{prompt} " * 300}, {"role": "user", "content": "go"}]})


def configuration(ports, data, admin, names, weight):
    rows = "".join(f'      - {{name: {name}, url: "http://127.0.0.1:{ports[name]}", weight: {weight if name == "d" else 1}}}\n'
                   for name in names)
    return f"listeners: [{{address: \"127.0.0.1:{data}\"}}]\nadmin: 127.0.0.1:{admin}\npools:\n  - endpoints:\n{rows}"


class Streams(threading.Thread):
    """Holds a stream open, and the next one when it has ended."""

    def __init__(self, port, number, until):
        super().__init__(daemon=True)
        self.port, self.number, self.until = port, number, until
        self.whole, self.cut = 0, []

    def run(self):
        while time.monotonic() < self.until:
            try:
                status, text, _ = ask(self.port, "POST", PATH, chat(f"stream {self.number}", True, 200))
                whole = status == 200 and text.rstrip().endswith(b"data: [DONE]")
                self.whole += whole
                if not whole:
                    self.cut.append(f"status {status}, {len(text)} bytes")
            except (OSError, http.client.HTTPException) as error:
                self.cut.append(repr(error))


def homes(port, prompts):
    """Where each prompt is sent."""
    found = {}
    for prompt in prompts:
        status, text, headers = ask(port, "POST", PATH, chat(prompt))
        status == 200 or sys.exit(f"{status} {text[:200]}")
        found[prompt] = headers["x-prefixroute-endpoint"]
    return found


def is_believed(admin, prompt, home):
    """Whether all of a prompt is still believed to be where it was sent."""
    explained = json.loads(ask(admin, "POST", "/prefixroute/explain", chat(prompt))[1])
    blocks = int(explained["match"].split("/")[1])
    return any(row["endpoint"] == home and row["matched"] == blocks > 0 for row in explained["scores"])


def process(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    return resident / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def steps(ports, data, admin):
    three, four = ["a", "b", "c"], ["a", "b", "c", "d"]
    text = lambda names, weight=1: configuration(ports, data, admin, names, weight)
    while True:
        yield "endpoint added", text(four), 200
        yield "weight changed", text(four, 0.5), 200
        yield "endpoint removed", text(three), 200
        yield "nothing changed", text(three), 200
        yield "broken", text(three) + "frobnicate: 1\n", 422


def reload_on_and_on(file, ports, data, admin, options):
    counts, wrong, slowest = {}, [], 0.0
    start = time.monotonic()
    for number, (name, text, wanted) in zip(range(options.reloads), steps(ports, data, admin)):
        due = start + number * options.seconds / options.reloads
        time.sleep(max(0.0, due - time.monotonic()))
        file.write_text(text)
        began = time.monotonic()
        status, answer, _ = ask(admin, "POST", "/prefixroute/reload")
        slowest = max(slowest, time.monotonic() - began)
        counts[name] = counts.get(name, 0) + 1
        if status != wanted:
            wrong.append(f"{name}: {status} {answer[:200]}")
    return counts, wrong, slowest, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in [("reloads", 1000), ("seconds", 60), ("streams", 16)]:
        parser.add_argument(f"--{flag}", type=int, default=default)
    options = parser.parse_args()
    shutil.which("oha") or sys.exit("oha is not installed")
    binary = TARGET / "release/prefixroute"
    started = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            ports = {name: cost.free_port() for name in "abcd"}
            for name, port in ports.items():
                started.append(subprocess.Popen([binary, "fake-server", "--name", name, "--port", str(port),
                                                 "--model", "m", "--slots", "200", "--cache-blocks", "20000", "--inter-token-ms", "10",
                                                 "--prefill-tokens-per-second", "200000"],
                                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            data, admin, file = cost.free_port(), cost.free_port(), folder / "prefixroute.yaml"
            file.write_text(configuration(ports, data, admin, ["a", "b", "c"], 1))
            for port in ports.values():
                wait_for(port)
            log = (folder / "log").open("w")
            router = subprocess.Popen([binary, "serve", "--config", file], stderr=log)
            started.append(router)
            wait_for(admin, "/readyz")
            sys.exit(run(router, ports, data, admin, file, folder, options))
        finally:
            for one in started:
                one.terminate()
            for one in started:
                one.wait(timeout=40)


def run(router, ports, data, admin, file, folder, options):
    prompts = [f"tenant {number}" for number in range(40)]
    before = homes(data, prompts)
    body = folder / "body.json"
    body.write_text(chat("load"))
    seconds = options.seconds + 4
    oha = subprocess.Popen(["oha", "-z", f"{seconds}s", "-c", "64", "--no-tui", "--output-format", "json", "-m", "POST",
                            "-T", "application/json", "-D", body, f"http://127.0.0.1:{data}{PATH}"],
                           stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + seconds
    streams = [Streams(data, number, until) for number in range(options.streams)]
    [stream.start() for stream in streams]
    time.sleep(2)
    resident = [process(router.pid)]
    counts, wrong, slowest, took = reload_on_and_on(file, ports, data, admin, options)
    resident.append(process(router.pid))
    result = json.loads(oha.communicate()[0])
    [stream.join() for stream in streams]
    file.write_text(configuration(ports, data, admin, ["a", "b", "c"], 1))
    ask(admin, "POST", "/prefixroute/reload")
    lost = [prompt for prompt, home in before.items() if not is_believed(admin, prompt, home)]
    statuses = {status: count for status, count in result["statusCodeDistribution"].items()}
    # Those that oha cut off itself at its own end are no failures.
    errors = {error: count for error, count in result["errorDistribution"].items() if "deadline" not in error}
    failed = sum(count for status, count in statuses.items() if status != "200") + sum(errors.values())
    cut = [reason for stream in streams for reason in stream.cut]
    state = json.loads(ask(admin, "GET", "/prefixroute/state")[1])
    print(f"{sum(counts.values())} reloads in {took:.1f} s, slowest {slowest * 1e3:.1f} ms: "
          + ", ".join(f"{count} {name}" for name, count in counts.items()))
    print(f"requests: {sum(statuses.values())} answered {statuses}, failed {failed} {errors}")
    print(f"streams: {sum(stream.whole for stream in streams)} whole, {len(cut)} cut {cut[:3]}")
    print(f"prompts that their endpoint is no longer believed to hold: {len(lost)} of {len(prompts)}")
    print(f"in flight at the end: {sum(row['in_flight'] for row in state['endpoints'])}; version {state['config']['version']}")
    print("memory, MiB, and descriptors: " + " -> ".join(f"{mib:.1f}, {files}" for mib, files in resident))
    for line in wrong[:5]:
        print(f"unexpected: {line}")
    return int(bool(failed or cut or lost or wrong))


if __name__ == "__main__":
    main()
