"""What compare.py prints: medians over rounds, ratios of the same round, and a page of Markdown. Pure: records in, text out.

A record is one turn of one proxy: section (load, rate, streams), case, proxy, round, figures, and `faults` by kind. Turns with
faults do not count in load and streams; at a fixed rate they do, a request without a right answer having taken for ever.
"""

import math
import statistics

BASES = ("pingora", "nginx")
TITLES = {"prefixroute": "prefixroute", "pingora": "raw Pingora", "direct": "no proxy"}
# A proxy that reaches so much of what the engines give without one is held up by generator and engines, not by itself.
CEILING_SHARE = 0.6
# With more than so many CPUs used by others, in the median turn, a page says that it is noisy.
NOISE_CPUS_MAX = 0.2

KEPT_OUT = """1. **Time inside the process sold as a proxy's cost.** CPU time is the kernel's for all processes of a proxy, the network stack's included;
   latency is from client to client. {inside}
2. **Failed requests dropped from the percentiles.** At the fixed rate every request that was due is in p50 and p99, counted from when it was due,
   and one without a right answer took for ever; goodput is the share of all requests that were answered right within {slo_ms:g} ms. In a closed
   loop there are no percentiles at all: they would say how the generator waited. A turn with one wrong answer does not count and is listed.
3. **One prompt over and over.** mixed: {systems} known system prompts of 9/10 of the body, a new question in every request. hot: {hot} prompts
   word for word. cold: new from the first word on, in every request of the whole run. Bodies have exactly the size that is named.
4. **Operations that are not requests.** The unit is an HTTP request answered whole, in streams a token that arrived.
5. **No memory beside the speed.** Resident memory before and after, its peak, and for how many requests, of which how many were cold.
6. **Round robin as the only one to compare with.** leastconn, LEAST_REQUEST, and a hash of the prompt's beginning with bounded load stand beside it.
   This page is about cost only: what routing wins in hits and first tokens is for `bench/routing.py`.

Others that were met on the way: engines that answer before they have read a large body (these read it whole), early buffers that hold tokens back
(see each proxy's note), a generator that is the bottleneck (the row without a proxy says where it is, and figures near it are marked), other load
on the machine (the CPUs that others used are above; turns are interleaved, and ratios are taken within a round)."""


def counts(record):
    return record["section"] == "rate" or not record["faults"]


def series(records, section, key):
    """proxy -> case -> round -> value, of turns that count."""
    found = {}
    for record in records:
        cell = found.setdefault(record["proxy"], {}).setdefault(record["case"], {}) if record["section"] == section else None
        if cell is not None and counts(record) and key in record:
            cell[record["round"]] = record[key]
    return found


def median(values):
    """0 of none; `inf` is a value."""
    return statistics.median(values) if values else None


def against(rounds, base, how):
    """Median over the rounds that both have of `how(own, base's)`."""
    return median([how(value, base[number]) for number, value in rounds.items() if base.get(number)])


def ratio(rounds, base):
    return against(rounds, base, lambda own, other: own / other)


def over(rounds, base):
    return against(rounds, base, lambda own, other: own - other if math.isfinite(own) else math.inf)


def medians(records):
    """section -> figure -> case -> proxy -> median, for machines to read."""
    found = {}
    for section, key in (("load", "cpu_us"), ("load", "rps"), ("load", "decision_us"), ("rate", "p50_ms"), ("rate", "p99_ms"), ("rate", "goodput"),
                         ("streams", "cpu_us"), ("streams", "first_p50_ms"), ("streams", "total_p50_ms"), ("streams", "total_p99_ms"),
                         ("streams", "gap_p99_ms")):
        for proxy, cases in series(records, section, key).items():
            for case, rounds in cases.items():
                if rounds:
                    found.setdefault(section, {}).setdefault(key, {}).setdefault(case, {})[proxy] = median(rounds.values())
    return found


def spread(values):
    """Median and 90th percentile."""
    ordered = sorted(values)
    return {"median": round(median(ordered), 2), "p90": round(ordered[int(len(ordered) * 0.9)], 2)} if ordered else {}


def number(value, sign=False):
    """Three digits that mean something."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "no answer"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:{'+' if sign else ''},.{digits}f}"


def progress(records, section, case, turn):
    key = {"load": "cpu_us", "rate": "p50_ms", "streams": "cpu_us"}[section]
    rows = [record for record in records if (record["section"], record["case"], record["round"]) == (section, case, turn)]
    unit = "ms" if key == "p50_ms" else "us"
    return ", ".join(f"{record['proxy']} {number(record[key])}" for record in rows if key in record and counts(record)) + f" {unit}"


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def title(proxy):
    return TITLES.get(proxy, proxy)


def cases_of(records, section):
    return list(dict.fromkeys(record["case"] for record in records if record["section"] == section))


def both_ratios(values, proxy, case):
    found = [ratio(values[proxy].get(case, {}), values.get(base, {}).get(case, {})) for base in BASES]
    return " / ".join(number(one) for one in found)


def glance(page):
    """One kind of request and what matters most of it: the middle of the table for who reads no further."""
    records = page["records"]
    costs, late = series(records, "load", "cpu_us"), series(records, "rate", "p99_ms")
    tokens, cases = series(records, "streams", "cpu_us"), cases_of(records, "load")
    case = next((one for one in cases if one == "12 KB mixed"), cases[0] if cases else None)
    first = lambda values, proxy: number(median(next(iter(values.get(proxy, {}).values()), {}).values()))
    rows = [[title(proxy), number(median(costs[proxy].get(case, {}).values())), both_ratios(costs, proxy, case), first(late, proxy), first(tokens, proxy),
             number(page["standing"].get(proxy, {}).get("rss_after_mib"))] for proxy in costs if proxy != "direct"]
    rate = next(iter(cases_of(records, "rate")), None)
    return table(["proxy", f"CPU µs a request, {case}", "/ Pingora / nginx", f"p99 ms at a fixed rate, {rate}" if rate else "p99 ms at a fixed rate",
                  "CPU µs a token streamed", "MiB after all of it"], rows)


def load_tables(records):
    """CPU time, its ratios, and throughput of the closed loop."""
    cases = cases_of(records, "load")
    costs, speeds = series(records, "load", "cpu_us"), series(records, "load", "rps")
    served = [proxy for proxy in costs if proxy != "direct"]
    cell = lambda rounds: f"{number(median(rounds.values()))} ({number(min(rounds.values()))})" if rounds else "–"
    yield "CPU time of a request, µs: median (least)", table(
        ["proxy", *cases], [[title(proxy), *(cell(costs[proxy].get(case, {})) for case in cases)] for proxy in served])
    yield "CPU time as a multiple: / raw Pingora's / nginx's", table(
        ["proxy", *cases], [[title(proxy), *(both_ratios(costs, proxy, case) for case in cases)] for proxy in served])
    yield "Requests a second, one CPU for the proxy", table(
        ["proxy", *cases], [[title(proxy), *(speed(speeds, proxy, case) for case in cases)] for proxy in speeds])
    yield "", (f"~ at {CEILING_SHARE:.0%} or more of what generator and engines reach without a proxy: they hold this figure down, so it compares nothing. "
               "CPU time does.\n")


def speed(speeds, proxy, case):
    rounds = speeds[proxy].get(case, {})
    value = median(rounds.values())
    share = ratio(rounds, speeds.get("direct", {}).get(case, {}))
    return ("~" if proxy != "direct" and share is not None and share >= CEILING_SHARE else "") + number(value)


def rate_table(records):
    """Latency and goodput at a fixed rate."""
    rates = {record["case"]: record["rate"] for record in records if record["section"] == "rate" and "rate" in record}
    keys = {key: series(records, "rate", key) for key in ("p50_ms", "p99_ms", "goodput")}
    failed = series([record | {"failed": sum(record["faults"].values())} for record in records], "rate", "failed")
    for case, rate in rates.items():
        rows = []
        for proxy in keys["p50_ms"]:
            p50, p99, goodput = (keys[key][proxy].get(case, {}) for key in keys)
            direct = {key: keys[key].get("direct", {}).get(case, {}) for key in keys}
            rows.append([title(proxy), number(median(p50.values())), number(median(p99.values())), number(over(p50, direct["p50_ms"]), True),
                         number(over(p99, direct["p99_ms"]), True), f"{number(median(goodput.values()))} %", f"{sum(failed[proxy].get(case, {}).values()):,}"])
        yield f"{case} at {rate:g} requests/s", table(
            ["proxy", "p50 ms", "p99 ms", "p50 over no proxy", "p99 over no proxy", "goodput", "not answered right"], rows)


def stream_table(records):
    """What streams cost and how much later their bytes come."""
    keys = ("cpu_us", "first_p50_ms", "first_p99_ms", "total_p50_ms", "total_p99_ms", "gap_p99_ms")
    values = {key: series(records, "streams", key) for key in keys}
    for case in cases_of(records, "streams"):
        rows = []
        for proxy in values["total_p50_ms"]:
            rounds = {key: values[key].get(proxy, {}).get(case, {}) for key in keys}
            direct = {key: values[key].get("direct", {}).get(case, {}) for key in keys}
            cost = "–" if proxy == "direct" else number(median(rounds["cpu_us"].values()))
            ratios = "–" if proxy == "direct" else both_ratios(values["cpu_us"], proxy, case)
            rows.append([title(proxy), cost, ratios, *(number(over(rounds[key], direct[key]), True) for key in keys[1:5]),
                         number(median(rounds["gap_p99_ms"].values()))])
        yield f"Streams: {case}, one every 10 ms", table(
            ["proxy", "CPU µs a token", "/ Pingora / nginx", "first byte p50 ms over no proxy", "p99",
             "whole stream p50 ms over no proxy", "p99", "gap p99 ms"], rows)


def memory_table(standing, records):
    served = {}
    for record in records:
        if record["section"] != "streams":
            whole, cold = served.get(record["proxy"], (0, 0))
            asked = record.get("requests", 0)
            served[record["proxy"]] = whole + asked, cold + asked * record["case"].endswith("cold")
    rows = [[title(proxy), number(at["rss_mib"]), number(at.get("rss_after_mib")), number(at.get("rss_most_mib")),
             *(f"{count:,}" for count in served.get(proxy, (0, 0))), number(at["idle_cpu_ms_s"]), str(at["threads"])]
            for proxy, at in standing.items()]
    return table(["proxy", "MiB at start", "after", "at most", "requests", "of them cold", "CPU ms a second when idle", "threads"], rows)


def head(page):
    """Machine, setting, versions, what is missing."""
    facts, options = page["facts"], page["facts"]["options"]
    tools = ", ".join(f"{name} {version}" for name, version in facts["tools"].items())
    others = page["others_cpus"]
    yield (f"Made {facts['made']} by `{facts['command']}`, sources {facts['sources'] or 'unknown'}.\n\n"
           f"{facts['cores']} CPUs ({facts['cpu']}), {facts['memory_gib']:g} GiB, Linux {facts['kernel']}, loopback. Proxies: one worker thread each, CPU "
           f"{facts['proxy_cpu']}; load and engines: CPU {facts['load_cpus']}. {tools}, Python {facts['python']}.\n"
           f"{options['replicas']} engines, {options['connections']} connections kept open, {options['rounds']} rounds, "
           f"turns of {options['seconds']} s, interleaved and turned round; "
           f"medians over rounds, ratios within a round. Other processes used {others.get('median', 0):g} CPUs in the median turn, "
           f"{others.get('p90', 0):g} in the 90th percentile.\n")
    if others.get("median", 0) > NOISE_CPUS_MAX:
        yield "**The machine was not quiet.** Ratios hold roughly, CPU times read high, requests a second and latencies tell little.\n"
    yield table(["proxy", "version", "spreads by", "set up"],
                [[title(name), one["version"], one["rule"], one["note"]] for name, one in facts["proxies"].items()])
    if page["skipped"]:
        yield "".join(f"- {line}\n" for line in page["skipped"])


def inside(records):
    """The other figure of trap 1, if there is one."""
    values = series(records, "load", "decision_us").get("prefixroute", {})
    means = [f"{number(median(rounds.values()))} µs ({case})" for case, rounds in values.items() if rounds]
    if not means:
        return ""
    return (f"Within prefixroute, by its own histogram, a decision takes {', '.join(means)} in the mean: "
            "what a request costs the machine is the table above.")


def markdown(page):
    """The whole page."""
    records, facts = page["records"], page["facts"]
    parts = ["# LLM routers and proxies side by side\n", *head(page)]
    if any(record["section"] == "load" for record in records):
        parts += ["## At a glance\n", glance(page)]
        for name, text in load_tables(records):
            parts += [f"## {name}\n", text] if name else [text]
    sections = [*rate_table(records), *stream_table(records)]
    for name, text in sections:
        parts += [f"## {name}\n", text]
    parts += ["## Memory and idle\n", memory_table(page["standing"], records)]
    parts += ["## Faults\n", "".join(f"- {line}\n" for line in page["errors"]) or
              "None: every answer had status 200 and the bytes or length expected, every stream all of its tokens and [DONE].\n"]
    systems = " or ".join(str(one) for one in sorted(set(facts["systems"].values()), reverse=True))
    parts += ["## Traps kept out\n", KEPT_OUT.format(inside=inside(records), slo_ms=facts["options"]["slo_ms"], systems=systems, hot=facts["hot"])]
    return "\n".join(parts)
