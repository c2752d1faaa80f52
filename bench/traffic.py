"""A client that keeps its rate whatever the answers do, and says of each request how it ended.

Used by kills.py, soak.py and engines.py. asyncio on bare sockets, because what ends how is the point: a library hides whether
a byte had come, whether the last chunk was there, and it tries again. Open loop: requests leave when they are due, over
connections that are kept alive, the newest first. Every request bears an `x-request-id`, by which ledger.py finds it again.
"""

import asyncio
import collections
import dataclasses
import json
import random
import time

PATH = "/v1/chat/completions"
# The words of a fake server's answers, over and over, each with the space before it.
WORDS = (" the", " cache", " holds", " what", " was", " asked", " before", " and", " so", " this", " answer",
         " comes", " sooner", " than", " it", " would")
# A kept connection that nobody used for so long is closed; the router would close its side later.
IDLE_SECONDS_MAX = 5
ANSWER_SECONDS_MAX = 60
OUTSTANDING_MAX = 5000

WHOLE = "answered whole"
NO_CONNECTION = "connection refused or reset before a byte was sent"
NO_BYTE = "connection ended without a byte of an answer"
HEAD_ONLY = "broken between head and body"
CUT = "broken in the body, visibly"
NO_DONE = "stream ended cleanly without [DONE]"
WRONG = "wrong bytes"
LATE = "no whole answer in time"
LEFT = "client left on purpose"
ERROR_EVENT = "engine's error within a stream"
ABORTED = "engine gave up: finish_reason abort, or [DONE] alone"
# What must never be seen, whatever happens to the engines.
NEVER = (NO_CONNECTION, NO_BYTE, NO_DONE, WRONG, LATE)


@dataclasses.dataclass
class Request:
    """One request, and how it ended. Times are of time.monotonic()."""
    id: str
    kind: str  # whole, stream or flood
    tokens: int
    leaves_after: float | None = None  # seconds
    body: bytes = b""
    sent: float = 0.0
    ended: float = 0.0
    first_byte: float | None = None  # seconds after `sent`
    outcome: str = ""
    status: int = 0
    code: str = ""  # of the router's own errors
    endpoint: str = ""  # as x-prefixroute-endpoint names it
    reason: str = ""

    def title(self):
        """The outcome, with status and code where there is one."""
        return f"{self.outcome}: {self.status} {self.code}".rstrip() if self.code or self.outcome.endswith("error") else self.outcome


ROUTERS_ERROR, ENGINES_ERROR = "router's error", "engine's error"


class Connection(asyncio.Protocol):
    """A client's connection: one request at a time, its answer read as it comes."""
    answers = None  # the class of answers, `Answer`

    def __init__(self):
        self.answer = self.transport = None
        self.closed, self.since = False, time.monotonic()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if self.answer is None:
            self.close()  # bytes that nobody asked for
        else:
            self.answer.feed(data)

    def connection_lost(self, error):
        self.closed = True
        if self.answer is not None:
            self.answer.end(repr(error) if error else "end of file")

    def close(self):
        self.closed = True
        self.transport.abort()

    async def ask(self, head, body):
        """Sends a request and waits until its answer has ended, one way or another."""
        self.answer = (self.answers or Answer)()
        answer = self.answer
        self.transport.write(head + body)
        if self.closed:
            answer.end("closed before the request was written")
        try:
            await answer.over
        finally:
            self.answer, self.since = None, time.monotonic()
            if not (answer.is_whole and answer.keeps and not answer.pending):
                self.close()
        return answer


class Answer:
    """An HTTP/1.1 answer, parsed as it comes. `is_whole` once its framing says that all is there."""

    def __init__(self):
        self.over = asyncio.get_running_loop().create_future()
        self.began, self.first_byte = time.monotonic(), None
        self.pending, self.body, self.status, self.headers = bytearray(), bytearray(), 0, {}
        self.left, self.reason = None, ""  # bytes of the body or chunk that are to come
        self.is_chunked = self.is_whole = self.keeps = False

    def feed(self, data):
        if self.first_byte is None:
            self.first_byte = time.monotonic() - self.began
        self.pending += data
        try:
            self.parse()
        except (ValueError, IndexError) as error:
            self.finish(f"no HTTP: {error!r}")

    def parse(self):
        while not self.status or self.status < 200:
            end = self.pending.find(b"\r\n\r\n")
            if end < 0:
                return
            self.read_head(bytes(self.pending[:end]))
            del self.pending[:end + 4]
        if self.is_chunked:
            self.read_chunks()
        elif self.left is None:
            self.body += self.pending
            self.pending.clear()
        else:
            taken = self.pending[:self.left]
            self.body += taken
            self.left -= len(taken)
            del self.pending[:len(taken)]
            if self.left == 0:
                self.complete()

    def read_head(self, head):
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        pairs = (line.split(":", 1) for line in lines)
        self.headers = {name.lower(): value.strip() for name, value in pairs}
        self.is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self.keeps = self.headers.get("connection", "").lower() != "close"
        if not self.is_chunked and "content-length" in self.headers:
            self.left = int(self.headers["content-length"])

    def read_chunks(self):
        while True:
            if self.left is None:
                line = self.pending.find(b"\r\n")
                if line < 0:
                    return
                self.left = int(bytes(self.pending[:line]), 16)
                del self.pending[:line + 2]
            if len(self.pending) < self.left + 2:
                return
            if self.pending[self.left:self.left + 2] != b"\r\n":
                raise ValueError("a chunk without its end")
            self.body += self.pending[:self.left]
            last = self.left == 0
            del self.pending[:self.left + 2]
            self.left = None
            if last:
                return self.complete()

    def complete(self):
        self.is_whole = True
        self.finish("")

    def end(self, reason):
        """The connection has ended."""
        if self.status and not self.is_chunked and self.left is None:
            return self.complete()  # a body that only the end of the connection ends
        self.finish(reason)

    def finish(self, reason):
        if not self.over.done():
            self.reason = reason
            self.over.set_result(None)


class Client:
    """Sends requests at a rate and keeps what became of them."""

    def __init__(self, port, rate, seed, *, streams=1 / 3, leaves=0.0, tokens=(8, 24), system_bytes=6000, tenants=24,
                 model="m", checks_words=True):
        self.port, self.rate, self.chance = port, rate, random.Random(seed)
        self.streams, self.leaves, self.tokens, self.model, self.checks_words = streams, leaves, tokens, model, checks_words
        self.systems = [self.text(system_bytes) for _ in range(tenants)]
        self.idle, self.requests, self.tasks, self.ended, self.whole = collections.deque(), [], set(), 0, 0
        self.flooding, self.until = False, 0.0
        self.late_seconds = 0.0  # how far behind its plan it ever was

    def text(self, size):
        word = lambda: "".join(self.chance.choices("abcdefghijklmnopqrstuvwxyz", k=self.chance.randint(2, 9)))
        return " ".join(word() for _ in range(size // 6 + 1))[:size]

    async def run(self, seconds):
        """Sends for `seconds`, or until `until` is set to an earlier time, then waits for the last answer."""
        due = time.monotonic()
        self.until = due + seconds
        while due < self.until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.late_seconds = max(self.late_seconds, time.monotonic() - due)
            if len(self.tasks) >= OUTSTANDING_MAX:
                raise RuntimeError(f"{OUTSTANDING_MAX} requests without an answer: the machine cannot keep this rate")
            task = asyncio.create_task(self.serve(self.plan(len(self.requests))))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            # A flood is as much again of prompts that were never seen.
            due += 1 / self.rate / (2 if self.flooding else 1)
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        for connection in self.idle:
            connection.close()

    def plan(self, number):
        """The next request: a tenant's system prompt and words of its own, or nothing but such words."""
        chance = self.chance
        kind = "stream" if chance.random() < self.streams else "whole"
        tokens = chance.randint(*self.tokens)
        system, user = chance.choice(self.systems), f"question {number}: {chance.getrandbits(128):x}"
        if self.flooding and number % 2:
            kind, tokens, system = "flood", 1, f"{number} {chance.getrandbits(64):x} " + chance.choice(self.systems)
        leaves = chance.uniform(0.0, 0.4) if chance.random() < self.leaves else None
        request = Request(f"r{number}", kind, tokens, leaves)
        request.body = json.dumps({
            "model": self.model, "stream": kind == "stream", "max_tokens": tokens, "ignore_eos": True,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}).encode()
        self.requests.append(request)
        return request

    async def serve(self, request):
        request.sent = time.monotonic()
        wait = request.leaves_after if request.leaves_after is not None else ANSWER_SECONDS_MAX
        try:
            async with asyncio.timeout(wait):
                await self.exchange(request)
        except TimeoutError:
            request.outcome = LATE if request.leaves_after is None else LEFT
        finally:
            request.ended, request.body = time.monotonic(), b""
            self.ended += 1
            self.whole += request.outcome == WHOLE

    async def exchange(self, request):
        try:
            connection = await self.connect()
        except OSError as error:
            request.outcome, request.reason = NO_CONNECTION, repr(error)
            return
        head = (f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nx-request-id: {request.id}\r\n"
                f"content-length: {len(request.body)}\r\n\r\n").encode()
        answer = await connection.ask(head, request.body)
        if not connection.closed:
            self.idle.append(connection)
        request.first_byte, request.status, request.reason = answer.first_byte, answer.status, answer.reason
        request.endpoint = answer.headers.get("x-prefixroute-endpoint", "")
        request.outcome = judge(request, answer, self.checks_words)

    async def connect(self):
        while self.idle and (self.idle[0].closed or time.monotonic() - self.idle[0].since > IDLE_SECONDS_MAX):
            self.idle.popleft().close()
        while self.idle:
            connection = self.idle.pop()
            if not connection.closed:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.port)
        return connection


def judge(request, answer, checks_words):
    """The class of an answer."""
    if answer.first_byte is None:
        return NO_BYTE
    if not answer.status or answer.reason.startswith("no HTTP"):
        return WRONG if answer.reason.startswith("no HTTP") else CUT
    if not answer.is_whole:
        return CUT if answer.body else HEAD_ONLY
    if answer.status >= 400:
        request.code = routers_code(answer) if not request.endpoint else ""
        return ROUTERS_ERROR if request.code else ENGINES_ERROR
    try:
        return judge_stream(request, answer, checks_words) if request.kind == "stream" else judge_json(request, answer, checks_words)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        request.reason = f"{error!r} in {bytes(answer.body[-200:])}"
        return WRONG


def routers_code(answer):
    """The code of an error of the router's own; engines' codes are numbers."""
    try:
        code = json.loads(answer.body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return ""
    return code if isinstance(code, str) else ""


def judge_json(request, answer, checks_words):
    page = json.loads(answer.body)
    if page["choices"][0]["finish_reason"] == "abort":
        return ABORTED
    return right_words(request, page["choices"][0]["message"]["content"], page["system_fingerprint"]) if checks_words else WHOLE


def judge_stream(request, answer, checks_words):
    events = bytes(answer.body).split(b"\n\n")
    is_done = events[-2:] == [b"data: [DONE]", b""]
    pages = [json.loads(event.removeprefix(b"data: ")) for event in events[:-2 if is_done else -1]]
    errors = [page["error"] for page in pages if "error" in page]
    if errors:
        request.reason = f"{errors[0]}"[:200]
        return ERROR_EVENT
    if not is_done:
        request.reason = f"ends with {events[-2:]}"
        return NO_DONE
    if not pages or any(choice["finish_reason"] == "abort" for page in pages for choice in page["choices"]):
        return ABORTED
    if len({page["id"] for page in pages}) != 1:
        request.reason = "events of several answers"
        return WRONG
    words = "".join(choice["delta"].get("content") or "" for page in pages for choice in page["choices"])
    return right_words(request, words, pages[-1]["system_fingerprint"]) if checks_words else WHOLE


def right_words(request, words, fingerprint):
    """A fake server's words can be foretold, and it says who it is."""
    wanted = "".join(WORDS[place % len(WORDS)] for place in range(request.tokens)).lstrip()
    if words == wanted and fingerprint.endswith(f"-{request.endpoint}"):
        return WHOLE
    request.reason = f"{request.tokens} words wanted of {request.endpoint}, {words[:80]!r} of {fingerprint} found"
    return WRONG
