"""One run of compare.py: the processes that it starts, everyone's turns, and the records that they leave."""

import contextlib
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import compare_load as load
import compare_proxies as proxies
import compare_report as report
import cost
import fleet as fleets
import reloads

BYTES_A_SECOND_MAX = 20e6  # at the fixed rate
WAVE_SPREAD_SECONDS = 0.3


class Live:
    """A proxy that runs, or with no process the engines themselves: what generator and engines make of it alone."""

    def __init__(self, name, ports, process=None, admin=None):
        self.name, self.ports, self.process, self.admin = name, ports, process, admin

    @property
    def port(self):
        return self.ports[0]

    def cpu_seconds(self):
        return cost.cpu_seconds(self.process.pid) if self.process else 0.0

    def memory_mib(self):
        """Resident now and at most, of all its processes."""
        sums = [0, 0]
        for pid in cost.tree(self.process.pid):
            fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
            sums = [so_far + int(fields[key].split()[0]) / 1024 for so_far, key in zip(sums, ("VmRSS", "VmHWM"))]
        return sums

    def threads(self):
        return sum(len(os.listdir(f"/proc/{pid}/task")) for pid in cost.tree(self.process.pid))

    def decisions(self):
        """Count and seconds of the decisions that prefixroute has made, by its own histogram."""
        page = fleets.series(reloads.ask(self.admin, "GET", "/metrics")[1], "prefixroute_decision_seconds", None)
        return page.get("prefixroute_decision_seconds_count", 0.0), page.get("prefixroute_decision_seconds_sum", 0.0)


class Bench:
    """One run of the command: what is started, and the records of all turns."""

    def __init__(self, fleet, found, options):
        self.fleet, self.found, self.options = fleet, found, options
        cores = sorted(os.sched_getaffinity(0))
        self.proxy_cpu, self.load_cpus = cores[0], ",".join(map(str, cores[1:]))
        self.pin = ["taskset", "-c", self.load_cpus]
        self.records, self.errors, self.stands, self.live = [], [], {}, []
        self.others, self.turns = [], 0

    def note(self, text):
        self.errors.append(text)
        print(text, file=sys.stderr)

    def start(self, engines):
        """Starts all proxies before these engines; one that does not pass a request on is left out from then on."""
        self.live = [Live("direct", engines)]
        for found in self.found:
            place = proxies.Place(self.fleet.folder, self.fleet.port(), (self.fleet.port(), self.fleet.port()), tuple(engines),
                                  self.proxy_cpu)
            command, env = proxies.lay(found, place)
            with (self.fleet.folder / f"{found.kind.name}.log").open("a") as log:
                process = self.fleet.start(command, env=env, stdout=log, stderr=log)
            admin = place.spare[0] if found.kind.name == "prefixroute" else None
            wrong = load.wait_answer(place.port, process)
            if wrong:
                self.note(f"{found.kind.name}: {wrong}; see its log in --out")
            else:
                self.live.append(Live(found.kind.name, [place.port], process, admin))

    def stop(self):
        """SIGINT, at which pingora does not wait; what is left in 20 s is killed."""
        for process in self.fleet.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 20
        for process in self.fleet.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ours(self):
        """CPU seconds of everything that this command has to do with."""
        used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return used + sum(cost.cpu_seconds(process.pid) for process in self.fleet.processes if process.poll() is None)

    def turn(self, live, section, case, number, run):
        """One proxy's turn: its figures and CPU time become a record; a turn with a fault is told of."""
        began, ours, busy = time.monotonic(), self.ours(), machine_busy()
        decisions = live.decisions() if live.admin else None
        before = live.cpu_seconds()
        try:
            figures = run()
            used = live.cpu_seconds() - before
        except (OSError, subprocess.SubprocessError) as error:
            used, figures = 0.0, {"faults": {f"{error}"[:200]: 1}}
        if live.process and live.process.poll() is not None:
            figures["faults"]["the proxy has ended"] = 1
            self.live.remove(live)
        elif decisions and figures.get("requests"):
            count, seconds = (after - then for after, then in zip(live.decisions(), decisions))
            figures["decision_us"] = seconds / count * 1e6 if count else 0.0
        record = {"section": section, "case": case, "proxy": live.name, "round": number, **figures}
        units = figures.get("events", figures.get("requests"))
        if live.process and units and section != "rate":
            record["cpu_us"] = used / units * 1e6
        self.records.append(record)
        if figures["faults"]:
            self.note(f"{live.name}, {case}, {f'round {number}' if number else 'warm-up'}: {'counts as' if section == 'rate' else 'does not count:'} "
                      + ", ".join(f"{count:,} × {fault}" for fault, count in figures["faults"].items()))
        self.others.append((machine_busy() - busy - (self.ours() - ours)) / (time.monotonic() - began))

    def round(self, number, section, case, run):
        """Everyone's turn, first to last or last to first."""
        for live in list(self.live)[:: 1 if number % 2 else -1]:
            self.turns += 1
            self.turn(live, section, case, number, lambda: run(live, self.turns))
        print(f"round {number}, {section}, {case}: " + report.progress(self.records, section, case, number), file=sys.stderr)

    def judge_once(self, case, pieces, wanted):
        """Each body once through each proxy, compared byte for byte; also the warm-up."""
        for live in self.live:
            self.turns += 1
            faults = load.wrong_answers(live.port, pieces, case, self.turns, wanted)
            for fault, count in faults.items():
                self.note(f"{live.name}, {case.name}, one at a time: {count} of {len(pieces)}: {fault}")

    def stand(self):
        """What each proxy uses while nothing is asked, in which all stand side by side."""
        time.sleep(1)  # a few scrapes
        before, began = {live.name: live.cpu_seconds() for live in self.live}, time.monotonic()
        time.sleep(2 if self.options.quick else 5)
        seconds = time.monotonic() - began
        for live in self.live[1:]:
            self.stands[live.name] = {"rss_mib": live.memory_mib()[0], "threads": live.threads(),
                                      "idle_cpu_ms_s": (live.cpu_seconds() - before[live.name]) / seconds * 1e3}

    def whole_answers(self, cases, rate_cases):
        """wrk and oha before engines of a fixed answer."""
        options, folder, wanted = self.options, self.fleet.folder, proxies.ANSWER.encode()
        ports = [self.fleet.port() for _ in range(options.replicas)]
        engine = self.fleet.start(proxies.engines(folder, ports, self.load_cpus), stderr=(folder / "engines.log").open("w"))
        wrong = load.wait_answer(ports[0], engine, 20)
        if wrong:
            sys.exit(f"the engines do not answer: {wrong}, see {folder}/engines.log")
        self.start(ports)
        self.stand()
        pieces = {case: load.bodies(case, options.seed) for case in {*cases, *rate_cases}}
        scripts = {case: load.wrk_script(folder, case, pieces[case], len(wanted)) for case in cases}
        for case in pieces:
            self.judge_once(case, pieces[case], wanted)
        for number in range(1, options.rounds + 1):
            for case in cases:
                self.round(number, "load", case.name, lambda live, run, case=case: load.wrk(
                    live.port, scripts[case], run, options.seconds, options.connections, self.pin))
            for case in rate_cases:
                self.round(number, "rate", case.name, lambda live, run, case=case: self.at_rate(live, run, case, pieces[case], wanted))
        for live in self.live[1:]:
            now, most = live.memory_mib()
            self.stands[live.name] |= {"rss_after_mib": now, "rss_most_mib": most}
        self.stop()

    def at_rate(self, live, run, case, pieces, wanted):
        rate = min(self.options.rate, BYTES_A_SECOND_MAX / case.bytes)
        count = max(int(rate * self.options.seconds), 20)
        lines = load.oha_lines(self.fleet.folder, case, pieces, run, count)
        return load.oha(live.port, lines, count, rate, self.options.connections, len(wanted), self.options.slo_ms, self.pin)

    def event_streams(self):
        """Waves of streams before fake servers, which give a token every 10 ms."""
        options, folder = self.options, self.fleet.folder
        ports = [self.fleet.port() for _ in range(options.replicas)]
        for port in ports:
            command = [*self.pin, options.binary, "fake-server", "--port", str(port), "--model", "m", "--slots", "10000", "--cache-blocks", "20000",
                       "--prefill-overhead-ms", "0", "--prefill-tokens-per-second", "1e9", "--inter-token-ms", "10"]
            self.fleet.start(command, env=dict(os.environ, **proxies.ONE_THREAD), stdout=subprocess.DEVNULL,
                             stderr=(folder / "fake-server.log").open("a"))
            reloads.wait_for(port)
        self.start(ports)
        case = f"{options.streams} streams of {options.tokens} tokens"
        wave = lambda live, run: load.streams(live.ports, run, options.streams, options.tokens, WAVE_SPREAD_SECONDS)
        for number in range(options.rounds + 1):
            self.round(number, "streams", case, wave)
        self.records = [record for record in self.records if record["round"]]  # the first wave warms up
        self.stop()


def machine_busy():
    """CPU seconds that the whole machine has spent on processes, its host's share included."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(fields[place]) for place in (1, 2, 3, 8)) / cost.TICK
