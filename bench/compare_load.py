"""What compare.py sends, and how an answer is judged: bodies, wrk in a closed loop, oha at a fixed rate, streams.

A run gives a dict with its figures and `faults`, a count by kind; it counts only where `faults` is empty.
"""

import asyncio
import collections
import csv
import dataclasses
import http.client
import io
import json
import math
import random
import subprocess
import time

import traffic

PATH = traffic.PATH
PROMPTS = ("hot", "mixed", "cold")
HOT = 8  # prompts that come again and again
ID = 16  # hexadecimal digits that make a prompt new
TEMPLATE = '{"model":"m","messages":[{"role":"system","content":"%s"},{"role":"user","content":"%s"}],"max_tokens":16}'
BYTES_MIN = len(TEMPLATE) + 2 * ID
TIMEOUT_SECONDS = 10
JSON_TYPE = {"content-type": "application/json"}


@dataclasses.dataclass(frozen=True)
class Case:
    """Bodies of one size. `prompts`: hot, the same few word for word; mixed, a known system prompt of 9/10 and a new
    question; cold, new from the first word on."""
    bytes: int
    prompts: str

    @property
    def name(self):
        size = f"{self.bytes // 1000} KB" if self.bytes >= 1000 else f"{self.bytes} B"
        return f"{size} {self.prompts}"

    def systems(self):
        """How many system prompts there are, fewer of long ones: all of them are held in memory by the generator."""
        return HOT if self.prompts == "hot" or self.bytes > 50_000 else 40


def words(chance, length):
    pool = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(997)]
    return " ".join(chance.choices(pool, k=length // 3 + 1))[:length]


def bodies(case, seed):
    """Bodies of exactly `case.bytes`, each in two pieces, between which ID digits stand that make a request's prompt its own."""
    chance = random.Random(f"{seed} {case.name}")
    room = case.bytes - len(TEMPLATE % ("", "")) - ID
    made = []
    for _ in range(case.systems()):
        system = words(chance, room * 9 // 10)
        user = words(chance, room - len(system))
        texts = ("\0" + system, user) if case.prompts == "cold" else (system, "\0" + user)
        made.append(tuple((TEMPLATE % texts).split("\0")))
    return made


def own(case, run, number):
    """The ID of a request: its own, or for hot prompts always the same. `run` is never used twice."""
    return "0" * ID if case.prompts == "hot" else f"{run:04x}{number:012x}"


SCRIPT = """-- One request after another over all bodies; every answer is judged.
local pieces = {}
for line in io.lines("%(lines)s") do
  local tab = line:find("\\t", 1, true)
  pieces[#pieces + 1] = {line:sub(1, tab - 1), line:sub(tab + 1)}
end
local head = "POST %(path)s HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Type: application/json\\r\\nContent-Length: %(bytes)d\\r\\n\\r\\n"
local run, number, threads = "0000", 0, {}
status, length = 0, 0
function setup(thread) threads[#threads + 1] = thread end
function init(arguments) run = arguments[1] end
function request()
  number = number + 1
  local piece = pieces[number %% #pieces + 1]
  return head .. piece[1] .. (%(hot)s and "%(zeros)s" or run .. string.format("%%012x", number)) .. piece[2]
end
function response(code, headers, body)
  if code ~= 200 then status = status + 1 elseif #body ~= %(wanted)d then length = length + 1 end
end
function done(summary)
  local wrong = {status = 0, length = 0}
  for _, thread in ipairs(threads) do
    wrong.status, wrong.length = wrong.status + thread:get("status"), wrong.length + thread:get("length")
  end
  local errors = summary.errors
  io.write(string.format('\\n{"requests":%%d,"seconds":%%f,"status":%%d,"length":%%d,"connect":%%d,"read":%%d,"write":%%d,"timeout":%%d}\\n',
    summary.requests, summary.duration / 1e6, wrong.status, wrong.length, errors.connect, errors.read, errors.write, errors.timeout))
end
"""
WRK_FAULTS = {"status": "not status 200", "length": "wrong length", "connect": "no connection", "read": "connection broke",
              "write": "connection broke", "timeout": f"no answer in {TIMEOUT_SECONDS} s"}


def wrk_script(folder, case, pieces, wanted):
    """Writes what wrk needs for a case. `wanted`: bytes of a right answer."""
    lines = folder / f"{case.bytes}-{case.prompts}.txt"
    lines.write_text("".join(f"{before}\t{after}\n" for before, after in pieces))
    script = lines.with_suffix(".lua")
    script.write_text(SCRIPT % {"lines": lines, "path": PATH, "bytes": case.bytes, "wanted": wanted, "zeros": "0" * ID,
                                "hot": "true" if case.prompts == "hot" else "false"})
    return script


def wrk(port, script, run, seconds, connections, pin):
    """As many requests as `connections` clients get through, one at a time each."""
    command = [*pin, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{TIMEOUT_SECONDS}s", "-s", str(script),
               f"http://127.0.0.1:{port}", "--", f"{run:04x}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    return read_wrk(done.stdout, done.stderr)


def read_wrk(out, error=""):
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        return {"faults": {f"wrk failed: {error.strip()[:200]}": 1}}
    page = json.loads(lines[-1])
    faults = collections.Counter()
    for key, title in WRK_FAULTS.items():
        faults[title] += page[key]
    faults["no answer at all"] += not page["requests"]
    right = page["requests"] - page["status"] - page["length"]
    return {"requests": page["requests"], "right": right, "rps": page["requests"] / page["seconds"], "faults": dict(+faults)}


def oha_lines(folder, case, pieces, run, count):
    """Bodies with their IDs, a line each. oha draws at random from twice as many as it sends."""
    path = folder / "oha.txt"
    with path.open("w") as out:
        for number in range(2 * count):
            before, after = pieces[number % len(pieces)]
            print(before + own(case, run, number) + after, file=out)
    return path


def oha(port, lines, count, rate, connections, wanted, slo_ms, pin):
    """Requests at a rate, whatever the answers do; each one's time counts from when it was due."""
    command = [*pin, "oha", "--no-tui", "--output-format", "csv", "-n", str(count), "-q", f"{rate:g}", "--latency-correction",
               "-c", str(connections), "-t", f"{TIMEOUT_SECONDS}s", "-m", "POST", "-T", "application/json", "-Z", str(lines),
               f"http://127.0.0.1:{port}{PATH}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=count / rate + 120)
    return read_oha(done.stdout, count, rate, wanted, slo_ms)


def read_oha(out, count, rate, wanted, slo_ms):
    """Every request that was sent is in the percentiles: one without a right answer took for ever."""
    faults, times = collections.Counter(), []
    for row in csv.DictReader(io.StringIO(out)):
        if row["status"] != "200":
            faults[f"status {row['status']}"] += 1
        elif int(row["bytes"]) != wanted:
            faults["wrong length"] += 1
        else:
            times.append(float(row["request-duration"]) * 1e3)
    faults["no answer"] += max(count - len(times) - faults.total(), 0)
    times.sort()
    padded = times + [math.inf] * (count - len(times))
    return {"requests": count, "p50_ms": percentile(padded, 50), "p99_ms": percentile(padded, 99),
            "goodput": sum(one <= slo_ms for one in times) / count * 100, "rate": rate, "faults": dict(+faults)}


def percentile(ordered, share):
    """The smallest value that `share` percent of an ordered list do not exceed."""
    return ordered[max(math.ceil(len(ordered) * share / 100) - 1, 0)]


def ask(port, body):
    """One request over a connection of its own: status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", PATH, body, JSON_TYPE)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wait_answer(port, process, seconds=60):
    """Waits until a proxy passes a request on, and gives what is wrong with it if it never does."""
    deadline, last = time.monotonic() + seconds, "nothing listens"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            status, _ = ask(port, (TEMPLATE % ("hello", "there")).encode())
            if status == 200:
                return ""
            last = f"answers {status}"
        except (OSError, http.client.HTTPException) as error:
            last = f"{error}"
        time.sleep(0.1)
    return f"ended with {process.returncode}" if process.poll() is not None else f"not ready in {seconds} s: {last}"


def wrong_answers(port, pieces, case, run, wanted):
    """Sends each body once and compares the answers, byte for byte: what is wrong, by kind."""
    faults = collections.Counter()
    for number, (before, after) in enumerate(pieces):
        try:
            status, body = ask(port, (before + own(case, run, number) + after).encode())
        except (OSError, http.client.HTTPException) as error:
            faults[f"no answer: {error}"] += 1
            continue
        if status != 200:
            faults[f"status {status}"] += 1
        elif body != wanted:
            faults["wrong bytes"] += 1
    return dict(faults)


class Timed(traffic.Answer):
    """An answer that keeps when its bytes came."""

    def __init__(self):
        super().__init__()
        self.times = []

    def feed(self, data):
        self.times.append(time.monotonic())
        super().feed(data)


class Stream(traffic.Connection):
    """A connection whose answers keep their times."""
    answers = Timed


def stream_fault(body, tokens):
    """What is wrong with a stream of a fake server: "" if every event is there, in order, and [DONE] ends it."""
    request = traffic.Request("", "stream", tokens)
    answer = type("Whole", (), {"body": body})
    try:
        outcome = traffic.judge_stream(request, answer, checks_words=False)
        events = [json.loads(event.removeprefix(b"data: ")) for event in bytes(body).split(b"\n\n")[:-2]]
        found = [choice["delta"].get("content") for event in events for choice in event["choices"]]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return f"{traffic.WRONG}: {error!r}"
    if outcome != traffic.WHOLE:
        return outcome
    found = [word for word in found if word]
    wanted = [traffic.WORDS[place % len(traffic.WORDS)] for place in range(tokens)]
    wanted[0] = wanted[0].lstrip()
    return "" if found == wanted else f"{len(found)} of {tokens} tokens, or others"


async def one_stream(port, number, run, tokens, delay):
    await asyncio.sleep(delay)
    body = json.dumps({"model": "m", "stream": True, "max_tokens": tokens, "ignore_eos": True, "messages": [
        {"role": "system", "content": f"tenant {number % 8} " * 20}, {"role": "user", "content": f"question {run} {number}"}]}).encode()
    head = (f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n").encode()
    began = time.monotonic()
    try:
        _, connection = await asyncio.get_running_loop().create_connection(Stream, "127.0.0.1", port)
        answer = await asyncio.wait_for(connection.ask(head, body), 60)
    except (OSError, TimeoutError) as error:
        return None, f"no whole answer: {error!r}"
    connection.close()
    if answer.status != 200 or not answer.is_whole:
        return None, f"status {answer.status}" if answer.status not in (0, 200) else f"cut: {answer.reason}"
    return (began, answer), stream_fault(answer.body, tokens)


async def wave(ports, run, streams, tokens, spread):
    """Streams side by side, in turn at all ports, their beginnings spread over so many seconds."""
    return await asyncio.gather(*(one_stream(ports[number % len(ports)], number, run, tokens, spread * number / streams)
                                  for number in range(streams)))


def streams(ports, run, count, tokens, spread):
    """One wave of streams: first byte, whole time and gaps, in ms; every event of each is judged."""
    found = asyncio.run(wave(ports, run, count, tokens, spread))
    faults = collections.Counter(fault for _, fault in found if fault)
    whole = [answer for answer, fault in found if not fault]
    first = sorted(answer.first_byte * 1e3 for _, answer in whole)
    total = sorted((answer.times[-1] - began) * 1e3 for began, answer in whole)
    gaps = sorted((after - before) * 1e3 for _, answer in whole for before, after in zip(answer.times, answer.times[1:]))
    if not gaps:
        return {"requests": count, "faults": dict(faults) or {"no gaps: every stream came at once": 1}}
    return {"requests": count, "events": len(whole) * tokens, "first_p50_ms": percentile(first, 50), "first_p99_ms": percentile(first, 99),
            "total_p50_ms": percentile(total, 50), "total_p99_ms": percentile(total, 99), "gap_p99_ms": percentile(gaps, 99),
            "faults": dict(faults)}
