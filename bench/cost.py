#!/usr/bin/env python3
"""CPU time per routed request: prefixroute beside a bare ProxyHttp pass-through and nginx, in one interleaved run.

    cargo build --release && cargo build --release --manifest-path bench/baseline/Cargo.toml
    bench/cost.py [--seconds 5] [--rounds 5] [--bytes 12000] [--connections 16] [--replicas 3]

Needs wrk and nginx. The proxies share CPU 0, one at a time; wrk and the backends (nginx, a reply of 300 bytes) have CPU 1.
CPU time is utime + stime of the proxy's processes over the run, from /proc; requests are wrk's.
The order is reversed every round; the figure is the median of the rounds. All loads go to loopback and end by themselves.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")
METRICS = "\n".join([
    'vllm:num_requests_running{engine="0",model_name="m"} 0.0',
    'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0',
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.05',
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="31250"} 1.0', ""])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bodies(folder, size, count=200, tenants=40, seed=1):
    """Chats of `size` bytes: most of each is its tenant's system prompt."""
    chance = random.Random(seed)
    word = lambda: "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(2, 9)))
    text = lambda length: " ".join(word() for _ in range(length // 6 + 1))[:length]
    systems = [text(size * 9 // 10) for _ in range(tenants)]
    path = folder / "bodies.jsonl"
    with path.open("w") as out:
        for number in range(count):
            system = systems[number % tenants]
            user = text(max(size - len(system) - 150, 20))
            messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            print(json.dumps({"model": "m", "messages": messages, "max_tokens": 16}), file=out)
    script = folder / "post.lua"
    script.write_text(f"""
local bodies = {{}}
for line in io.lines("{path}") do bodies[#bodies + 1] = line end
local headers = {{["Content-Type"] = "application/json"}}
local turn = 0
function request()
  turn = turn % #bodies + 1
  return wrk.format("POST", "/v1/chat/completions", headers, bodies[turn])
end
""")
    return script


def nginx_config(folder, name, cpu, http):
    """The text of a configuration with one worker; `cpu` is nginx's mask."""
    return f"""worker_processes 1; worker_cpu_affinity {cpu}; pid {folder}/{name}.pid; daemon off;
error_log {folder}/{name}.log error;
events {{ worker_connections 4096; }}
http {{ access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 100000000;
client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder};
scgi_temp_path {folder};
{http} }}"""


def nginx_pass(port, ports):
    """The part of that text that passes requests on: connections to replicas kept, answers not held back."""
    upstreams = "".join(f"server 127.0.0.1:{port};" for port in ports)
    return f"""upstream replicas {{ {upstreams} keepalive 64; keepalive_requests 100000000; }}
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://replicas; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_buffering off; }} }}"""


def nginx(folder, name, cpu, http):
    config = folder / f"{name}.conf"
    config.write_text(nginx_config(folder, name, cpu, http))
    return subprocess.Popen(["nginx", "-e", str(folder / "start.log"), "-c", str(config)])


def backends(folder, ports):
    reply = json.dumps({"id": "x", "object": "chat.completion", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "word " * 30}, "finish_reason": "stop"}]})[:300]
    servers = "".join(
        f"""server {{ listen 127.0.0.1:{port}; default_type application/json;
location /metrics {{ default_type text/plain; return 200 '{METRICS}'; }}
location / {{ return 200 '{reply}'; }} }}""" for port in ports)
    return nginx(folder, "backends", "10", servers)


def proxies(folder, ports):
    """Name, port and command of each proxy."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    baseline = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "bench/baseline/target"))
    listen = {name: free_port() for name in ("nginx", "ProxyHttp", "prefixroute")}
    http = nginx_pass(listen["nginx"], ports)
    endpoints = [f"--endpoint=r{place}=http://127.0.0.1:{port}" for place, port in enumerate(ports)]
    one = dict(os.environ, TOKIO_WORKER_THREADS="1")
    yield "nginx", listen["nginx"], nginx(folder, "proxy", "01", http)
    yield "ProxyHttp", listen["ProxyHttp"], subprocess.Popen(
        ["taskset", "-c", "0", baseline / "release/baseline", f"127.0.0.1:{listen['ProxyHttp']}"]
        + [f"127.0.0.1:{port}" for port in ports], stderr=subprocess.DEVNULL)
    yield "prefixroute", listen["prefixroute"], subprocess.Popen(
        ["taskset", "-c", "0", target / "release/prefixroute", "serve", f"--listen=127.0.0.1:{listen['prefixroute']}",
         f"--admin=127.0.0.1:{free_port()}"] + endpoints, env=one, stderr=subprocess.DEVNULL)


def tree(pid):
    """A process and all that descend from it (nginx's worker)."""
    found = [pid]
    for one in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for task in pathlib.Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds(pid):
    """CPU time of a process and all that descend from it."""
    ticks = 0
    for one in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICK


def load(port, script, seconds, connections):
    out = subprocess.run(["taskset", "-c", "1", "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s",
                          script, f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True).stdout
    requests = int(re.search(r"(\d+) requests in", out)[1])
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    broken = re.search(r"Socket errors: (.*)", out)
    p50 = re.search(r"50%\s+(\S+)", out)[1]
    return requests, p50, (refused and refused[0]) or (broken and broken[0])


def wait_for(port, process):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"nothing listens on port {port}")


def measure(running, script, options):
    costs = {name: [] for name, _, _ in running}
    speeds = {name: [] for name, _, _ in running}
    for turn in range(options.rounds + 1):
        for name, port, process in running[:: 1 if turn % 2 else -1]:
            before = cpu_seconds(process.pid)
            requests, p50, errors = load(port, script, options.seconds, options.connections)
            used = cpu_seconds(process.pid) - before
            if errors:
                sys.exit(f"{name}: {errors}")
            if turn:  # the first round warms up
                costs[name].append(used / requests * 1e6)
                speeds[name].append(requests / options.seconds)
                print(f"round {turn} {name:12} {used / requests * 1e6:6.1f} us  p50 {p50}", file=sys.stderr)
    return costs, speeds


def table(costs, speeds, options):
    nginx_us = statistics.median(costs["nginx"])
    bare_us = statistics.median(costs["ProxyHttp"])
    print(f"\n{options.bytes} byte POST, {options.replicas} replicas, {options.connections} connections, "
          f"{options.rounds} rounds of {options.seconds} s\n")
    print("| proxy | CPU us/request, median (min) | / nginx | / ProxyHttp | requests/s |\n|---|---|---|---|---|")
    for name, values in costs.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.1f} ({min(values):.1f}) | {median / nginx_us:.2f} | {median / bare_us:.2f} "
              f"| {statistics.median(speeds[name]):,.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in [("seconds", 5), ("rounds", 5), ("bytes", 12000), ("connections", 16), ("replicas", 3)]:
        parser.add_argument(f"--{flag}", type=int, default=default)
    options = parser.parse_args()
    for tool in ("wrk", "nginx", "taskset"):
        shutil.which(tool) or sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        ports = [free_port() for _ in range(options.replicas)]
        started = [backends(folder, ports)]
        try:
            running = []
            for name, port, process in proxies(folder, ports):
                started.append(process)
                wait_for(port, process)
                running.append((name, port, process))
            time.sleep(1)  # a few scrapes
            table(*measure(running, bodies(folder, options.bytes), options), options)
        finally:
            for process in started:
                process.send_signal(signal.SIGINT)  # pingora waits minutes after SIGTERM
            for process in started:
                process.wait(timeout=40)


if __name__ == "__main__":
    main()
