#!/usr/bin/env python3
"""An engine that misbehaves on purpose: resets, answers cut at every place, garbage, errors, slowness.

    bench/stub_engine.py --port 21000 --name stub --seed 1 --record requests.jsonl [--wrong 0.5]

Used by soak.py. Speaks as a fake server does where it behaves. `--wrong` of its requests meet one of the faults below, chosen
by the seed. A line for each request that reached it whole goes to `--record`: its x-request-id, the fault, the time. So it can
be told afterwards whether one came twice. Ends with SIGTERM.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import struct
import time

import cost
import traffic

FAULTS = ("reset before the answer", "end before the answer", "half a head", "garbage", "head only", "reset in the body",
          "end in the body", "short of its length", "500", "503", "slow", "closes afterwards")


def reply(status, body, extra=""):
    return (f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{extra}\r\n").encode() + body


class Engine:
    def __init__(self, options):
        self.name, self.wrong = options.name, options.wrong
        self.chance = random.Random(options.seed)
        self.record = open(options.record, "a", buffering=1)
        self.number = 0

    async def serve(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()

    async def one(self, reader, writer):
        """One request; False when the connection is not to be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path = first.split(" ")[:2]
        if method != "POST":
            page = cost.METRICS.encode() if path == "/metrics" else b'{"object":"list","data":[{"id":"m","object":"model"}]}'
            writer.write(reply(200, page))
            return True
        fault = self.chance.choice(FAULTS) if self.chance.random() < self.wrong else ""
        print(json.dumps({"id": headers.get("x-request-id"), "fault": fault, "at": time.monotonic()}), file=self.record)
        return await self.answer(writer, json.loads(body), fault)

    async def answer(self, writer, asked, fault):
        await asyncio.sleep(0.6 if fault == "slow" else self.chance.uniform(0.0, 0.3))
        if fault == "reset before the answer":
            return reset(writer)
        if fault == "end before the answer":
            return False
        if fault == "half a head":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
            return False
        if fault == "garbage":
            writer.write(bytes(self.chance.randrange(256) for _ in range(300)))
            return False
        if fault in ("500", "503"):
            writer.write(reply(fault, b'{"error":{"message":"out of order","code":%s}}' % fault.encode(), "retry-after: 1\r\n"))
            return True
        self.number += 1
        speak = self.stream if asked["stream"] else self.whole
        return await speak(writer, f"chatcmpl-{self.number}", asked["max_tokens"], fault)

    def words(self, tokens):
        return "".join(traffic.WORDS[place % len(traffic.WORDS)] for place in range(tokens)).lstrip()

    async def whole(self, writer, name, tokens, fault):
        page = reply(200, json.dumps({
            "id": name, "object": "chat.completion", "system_fingerprint": f"stub-{self.name}",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": self.words(tokens)}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}}).encode())
        body = page.index(b"\r\n\r\n") + 4
        if fault == "head only":
            writer.write(page[:body])
            return False
        if fault in ("reset in the body", "end in the body", "short of its length"):
            writer.write(page[:body + 40])
            await writer.drain()
            return reset(writer) if fault.startswith("reset") else False
        writer.write(page)
        return fault != "closes afterwards"

    async def stream(self, writer, name, tokens, fault):
        event = lambda text: b"%x\r\n%s\r\n" % (len(text), text)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if fault == "head only":
            return False
        for place in range(tokens):
            word = traffic.WORDS[place % len(traffic.WORDS)]
            page = json.dumps({"id": name, "system_fingerprint": f"stub-{self.name}", "choices": [
                {"index": 0, "delta": {"content": word if place else word.lstrip()}, "finish_reason": None}]})
            writer.write(event(f"data: {page}\n\n".encode()))
            await writer.drain()
            if place == tokens // 2 and fault in ("reset in the body", "end in the body", "short of its length"):
                if fault == "short of its length":
                    writer.write(b"40\r\ndata: ")
                return reset(writer) if fault.startswith("reset") else False
            await asyncio.sleep(0.1 if fault == "slow" else 0.02)
        writer.write(event(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return fault != "closes afterwards"


def reset(writer):
    """Closes so that the other side sees a reset."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def run(options):
    server = await asyncio.start_server(Engine(options).serve, "127.0.0.1", options.port, limit=1 << 20, backlog=1024)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with server:
        await stop.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="stub")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wrong", type=float, default=0.5, help="share of the requests that meet a fault")
    parser.add_argument("--record", required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
