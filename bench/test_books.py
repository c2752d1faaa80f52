"""The books of kills.py, soak.py and engines.py are worth what they would notice: each class of ending, and each disagreement.

    python3 -m unittest discover -s bench -p 'test_*.py'
"""

import asyncio
import json
import pathlib
import tempfile
import types
import unittest

import chart
import fleet as fleets
import ledger as ledgers
import traffic

HEAD = b"HTTP/1.1 200 OK\r\nx-prefixroute-endpoint: a\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def sized(body, head=HEAD):
    return head + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def chunks(*texts):
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(text), text) for text in texts)


def page(words, fingerprint="x-a", finish="length"):
    choices = [{"message": {"content": words}, "finish_reason": finish}]
    return json.dumps({"choices": choices, "system_fingerprint": fingerprint}).encode()


def event(words, name="1", finish=None):
    choices = [{"delta": {"content": words}, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": name, "choices": choices, "system_fingerprint": "x-a"}).encode() + b"\n\n"


DONE, END = b"data: [DONE]\n\n", b"0\r\n\r\n"
ERROR = b'{"error":{"code":"upstream_broke"}}'
ENDINGS = [
    ("whole", sized(page("the cache")), traffic.WHOLE),
    ("whole", b"HTTP/1.1 102 Processing\r\n\r\n" + sized(page("the cache")), traffic.WHOLE),
    ("whole", sized(page("the cache holds")), traffic.WRONG),
    ("whole", sized(page("the cache", "x-b")), traffic.WRONG),
    ("whole", sized(b"{"), traffic.WRONG),
    ("whole", b"\x00\x01garbage\r\n\r\n", traffic.WRONG),
    ("whole", sized(page("the", finish="abort")), traffic.ABORTED),
    ("whole", sized(page("the cache"))[:-3], traffic.CUT),
    ("whole", HEAD + b"content-length: 9\r\n\r\n", traffic.HEAD_ONLY),
    ("whole", b"", traffic.NO_BYTE),
    ("whole", sized(ERROR, b"HTTP/1.1 502 x\r\n"), "router's error: 502 upstream_broke"),
    ("whole", sized(ERROR, HEAD.replace(b"200", b"502")), "engine's error: 502"),
    ("whole", sized(b'{"error":{"code":500}}', b"HTTP/1.1 500 x\r\n"), "engine's error: 500"),
    ("stream", chunks(event("the"), event(" cache"), DONE) + END, traffic.WHOLE),
    ("stream", chunks(event("the"), event(" cache")) + END, traffic.NO_DONE),
    ("stream", chunks(event("the"), event(" cache", "2"), DONE) + END, traffic.WRONG),
    ("stream", chunks(event("the"), DONE) + END, traffic.WRONG),
    ("stream", chunks(event("the"), event(" cache"), DONE), traffic.CUT),
    ("stream", chunks(event("the"))[:-9], traffic.HEAD_ONLY),
    ("stream", CHUNKED + b"3\r\nabcd\r\n", traffic.WRONG),
    ("stream", chunks(b'data: {"error": {"code": 500}}\n\n', DONE) + END, traffic.ERROR_EVENT),
    ("stream", chunks(event("error"), DONE) + END, traffic.WRONG),
    ("stream", chunks(DONE) + END, traffic.ABORTED),
]


class Endings(unittest.TestCase):
    async def ending(self, kind, received, piece):
        answer = traffic.Answer()
        for place in range(0, len(received), piece):
            answer.feed(received[place:place + piece])
        answer.end("end of file")
        request = traffic.Request("r", kind, 2, endpoint=answer.headers.get("x-prefixroute-endpoint", ""))
        request.status, request.outcome = answer.status, traffic.judge(request, answer, True)
        return request.title()

    def test_each_ending_is_told_however_it_is_cut_into_pieces(self):
        for kind, received, wanted in ENDINGS:
            for piece in (1, 7, 100_000):
                self.assertEqual(asyncio.run(self.ending(kind, received, piece)), wanted, (kind, received, piece))


def request(name, outcome, status, **more):
    return traffic.Request(name, "whole", 2, outcome=outcome, status=status, sent=10.0, ended=11.0, **more)


def line(name, status, trouble=None, endpoint="a", attempts=1):
    return {"request_id": name, "status": status, "trouble": trouble, "endpoint": endpoint, "attempts": attempts}


class Books(unittest.TestCase):
    def books(self, requests, lines, faults=(), metrics=None):
        counted = {"prefixroute_requests_total": len(lines)}
        for one in lines:
            if one["trouble"]:
                key = ("prefixroute_errors_total", one["trouble"])
                counted[key] = counted.get(key, 0) + 1
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "access.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
            fleet = types.SimpleNamespace(folder=folder, faults=list(faults), router=types.SimpleNamespace(poll=lambda: None),
                                          metrics=lambda _label: counted | (metrics or {}))
            ledger = ledgers.Ledger(fleet, types.SimpleNamespace(requests=requests, late_seconds=0))
        ledger.check(0)
        ledger.check_losses()
        return [text.split("\n")[0] for text in ledger.wrong]

    def test_books_that_balance_are_without_a_fault(self):
        requests = [request("1", traffic.WHOLE, 200, endpoint="a"), request("2", traffic.CUT, 200, endpoint="a"),
                    request("3", traffic.ROUTERS_ERROR, 502, code="upstream_broke"), request("4", traffic.LEFT, 0)]
        lines = [line("1", 200), line("2", 200, "mid_stream"), line("3", 502, "upstream_broke", None), line("4", 499, "client_gone")]
        self.assertEqual(self.books(requests, lines, [fleets.Fault("kill", "a", 9.5, 12.0, gone=10.5)]), [])

    def test_each_disagreement_is_a_fault(self):
        whole, cut = request("1", traffic.WHOLE, 200, endpoint="a"), request("1", traffic.CUT, 200, endpoint="a")
        refused = request("1", traffic.ROUTERS_ERROR, 502, code="unreachable")
        kill = fleets.Fault("kill", "a", 10.5, 12.0)
        cut_line, refused_line = line("1", 200, "mid_stream"), line("1", 502, "unreachable", None)
        unexplained = "lost though no fault explains it: 1"
        for wanted, requests, lines, faults, metrics in [
            ("missing in the access log: 1", [whole], [], [], {}),
            ("more than once in the access log: 1", [whole], [line("1", 200), line("1", 200)], [], {}),
            ("in the access log and of no client: 1", [whole], [line("1", 200), line("2", 200)], [], {}),
            ("the access log tells another ending: 1", [whole], [line("1", 200, endpoint="b")], [], {}),
            ("the access log tells another ending: 1", [whole], [line("1", 200, "mid_stream")], [], {}),
            ("the access log tells another ending: 1", [cut], [line("1", 200)], [kill], {}),
            ("requests counted: 3, in the access log: 1", [whole], [line("1", 200)], [], {"prefixroute_requests_total": 3}),
            ("errors counted: {'mid_stream': 2}, in the access log: {'mid_stream': 1}", [cut], [cut_line], [kill],
             {("prefixroute_errors_total", "mid_stream"): 2}),
            ("retries counted: 0, in the access log: 1", [whole], [line("1", 200, attempts=2)], [], {"prefixroute_retries_total": 0}),
            ("prefixroute_endpoint_in_flight at the end: 1", [whole], [line("1", 200)], [], {"prefixroute_endpoint_in_flight": 1.0}),
            (unexplained, [cut], [cut_line], [], {}),
            (unexplained, [cut], [cut_line], [fleets.Fault("kill", "b", 10.5)], {}),
            (unexplained, [cut], [cut_line], [fleets.Fault("kill", "a", 9.0)], {}),
            (unexplained, [cut], [cut_line], [fleets.Fault("kill", "a", 11.5)], {}),
            (unexplained, [cut], [cut_line], [fleets.Fault("kill", "a", 9.0, 12.0, gone=9.5)], {}),
            (unexplained, [refused], [refused_line], [kill], {}),
            ("requests without an ending: 1", [request("1", "", 200, endpoint="a")], [line("1", 200)], [], {}),
        ]:
            self.assertIn(wanted, self.books(requests, lines, faults, metrics))
        for outcome in traffic.NEVER:
            self.assertIn(f"{outcome}: 1", self.books([request("1", outcome, 200)], [line("1", 200)], [kill]))


class Chart(unittest.TestCase):
    def test_scales_are_cut_into_round_steps(self):
        for span, most, wanted in [(10, 10, 1), (11, 10, 2), (480, 5, 100), (0.9, 5, 0.2), (0, 5, 1e-9)]:
            self.assertAlmostEqual(chart.round_step(span, most), wanted)


if __name__ == "__main__":
    unittest.main()
