#!/usr/bin/env python3
"""What the features of the edge cost: CPU time per routed request with each of them on, beside all off, in one interleaved run.

    cargo build --release && bench/edge.py [--seconds 3] [--rounds 5] [--bytes 12000] [--connections 16] [--replicas 3]

Needs wrk, nginx (as the engines) and openssl. One router for each row, all on CPU 0, one loaded at a time; wrk and the engines have
CPU 1. Measured as in cost.py: utime + stime of the router over the run, by the requests that wrk counts; the median of the rounds,
whose order is reversed every time. TLS is from the client, with connections kept open.
"""

import argparse
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import cost

KEY = "sk-benchmark"
TENANT = """tenants: [{name: acme, keys: ["file:key"], isolate: ISOLATE, limits: LIMITS}]
"""
LIMITS = "{requests_per_second: 1000000, concurrent_requests: 1000, prompt_tokens_per_minute: 4000000000}"
SALT = "cache_salt_secret: file:salt\n"
BROWSERS = "cors: {origins: [\"https://app.example\"]}\n"
PATHS = "paths: [/v1/*]\n"
PROXIES = "trusted_proxies: [127.0.0.1]\nforwarded_headers: true\n"
LOG = "access_log: access-NAME.jsonl\n"
DECISIONS = "decision_log: {path: decisions-NAME.jsonl}\n"


def tenant(isolate="false", limits="{}"):
    return TENANT.replace("ISOLATE", isolate).replace("LIMITS", limits)


ROWS = {
    "off": "",
    "API key": tenant(),
    "API key, limits": tenant(limits=LIMITS),
    "isolated tenant": SALT + tenant("true"),
    "access log": LOG,
    "decision log": DECISIONS,
    "CORS, paths, forwarded headers": BROWSERS + PATHS + PROXIES,
    "alias of one of two pools": "POOLS",
    "TLS": "TLS",
    "all but TLS": SALT + tenant("true", LIMITS) + BROWSERS + PATHS + PROXIES + LOG,
    "all": "TLS" + SALT + tenant("true", LIMITS) + BROWSERS + PATHS + PROXIES + LOG,
}


def certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=localhost"],
                   check=True, stderr=subprocess.DEVNULL)


def configuration(folder, place, extra, port, engines):
    tls = extra.startswith("TLS")
    pools = extra == "POOLS"
    extra = "" if pools else extra.removeprefix("TLS").replace("NAME", str(place))
    certificates = ', tls: {certificates: [{cert: cert.pem, key: "file:key.pem"}]}' if tls else ""
    rows = "".join(f"      - url: http://127.0.0.1:{engine}\n" for engine in engines)
    named = "    name: a\n    models: [served]\n    aliases: {m: served}\n" if pools else "    name: a\n"
    other = "  - name: b\n    models: [other]\n    endpoints: []\n" if pools else ""
    path = folder / f"{place}.yaml"
    path.write_text(f"listeners: [{{address: \"127.0.0.1:{port}\"{certificates}}}]\nadmin: 127.0.0.1:{cost.free_port()}\n{extra}"
                    f"pools:\n  -\n{named}    endpoints:\n{rows}{other}")
    return path


def router(folder, place, extra, engines):
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", cost.ROOT / "target"))
    port = cost.free_port()
    path = configuration(folder, place, extra, port, engines)
    command = ["taskset", "-c", "0", target / "release/prefixroute", "serve", "--config", path]
    log = (folder / f"{place}.log").open("w")
    process = subprocess.Popen(command, env=dict(os.environ, TOKIO_WORKER_THREADS="1"), stderr=log)
    cost.wait_for(port, process)
    return process, port


def load(port, tls, script, options):
    scheme = "https" if tls else "http"
    out = subprocess.run(["taskset", "-c", "1", "wrk", "-t1", f"-c{options.connections}", f"-d{options.seconds}s", "-s", script,
                          f"{scheme}://127.0.0.1:{port}"], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        sys.exit(out)
    return int(out.split(" requests in")[0].split()[-1])


def measure(routers, script, options):
    costs = {name: [] for name in ROWS}
    for turn in range(options.rounds + 1):
        for name, (process, port) in list(routers.items())[:: 1 if turn % 2 else -1]:
            before = cost.cpu_seconds(process.pid)
            requests = load(port, ROWS[name].startswith("TLS"), script, options)
            if turn:  # the first round warms up
                costs[name].append((cost.cpu_seconds(process.pid) - before) / requests * 1e6)
    return costs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in [("seconds", 3), ("rounds", 5), ("bytes", 12000), ("connections", 16), ("replicas", 3)]:
        parser.add_argument(f"--{flag}", type=int, default=default)
    options = parser.parse_args()
    for tool in ("wrk", "nginx", "taskset", "openssl"):
        shutil.which(tool) or sys.exit(f"{tool} is not installed")
    started = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        certificate(folder)
        (folder / "key").write_text(KEY)
        (folder / "salt").write_text("0123456789abcdef")
        script = cost.bodies(folder, options.bytes)
        script.write_text(script.read_text().replace('{["Content-Type"]', f'{{["Authorization"] = "Bearer {KEY}", ["Content-Type"]'))
        engines = [cost.free_port() for _ in range(options.replicas)]
        try:
            started.append(cost.backends(folder, engines))
            routers = {name: router(folder, place, extra, engines) for place, (name, extra) in enumerate(ROWS.items())}
            started += [process for process, _ in routers.values()]
            time.sleep(1)  # a few scrapes
            costs = measure(routers, script, options)
        finally:
            for process in started:
                process.send_signal(signal.SIGINT)
            for process in started:
                process.wait(timeout=40)
    off = statistics.median(costs["off"])
    print(f"{options.bytes} byte POST, {options.connections} connections, {options.rounds} rounds of {options.seconds} s\n")
    print("| on | CPU us/request, median (min) | / off |\n|---|---|---|")
    for name, values in costs.items():
        print(f"| {name} | {statistics.median(values):.1f} ({min(values):.1f}) | {statistics.median(values) / off:.2f} |")


if __name__ == "__main__":
    main()
