#!/usr/bin/env python3
"""A gate on the machine instructions of the hot paths: red when a scenario takes 5 % more or less than is committed.

    bench/instructions.py                     compare with bench/instructions.json; exit 1 if one is off, 2 if it cannot run
    bench/instructions.py --update            write the counts of this tree into bench/instructions.json
    bench/instructions.py --only NAME...      compare these scenarios only
    bench/instructions.py --profile NAME      where a scenario's instructions go, by function; compares nothing

Needs valgrind. Counts are callgrind's, per call, of picker/benches/instructions.rs; clocks, caches and neighbours do not enter,
so they hold on any machine. The index's random key moves them by less than 1 %. Three things move them and are not ours: the
compiler, the C library's malloc and memcpy, and the CPU's vector instructions, which memchr and the UTF-8 check choose by at run
time. They are recorded; where one differs the gate says so and only refuses 15 % more. Fewer instructions are refused too, so that a gain is written down and kept.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNTS = ROOT / "bench/instructions.json"
TOLERANCE_PERCENT = 5
FOREIGN_TOLERANCE_PERCENT = 15
PROFILE_LINES = 16
FUNCTION_CHARACTERS = 110


def fail(reason):
    print(reason, file=sys.stderr)
    sys.exit(2)


def build():
    """Path of the built scenarios."""
    command = ["cargo", "bench", "--quiet", "--locked", "--no-run", "--message-format=json",
               "-p", "prefixroute-picker", "--bench", "instructions"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        fail("the scenarios do not build")
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    paths = [one["executable"] for one in messages if one.get("executable") and one["target"]["name"] == "instructions"]
    return paths[-1] if paths else fail("cargo names no executable")


def callgrind(program, name, out="/dev/null", extra=()):
    """Instructions collected while a scenario runs."""
    command = ["valgrind", "--tool=callgrind", "--toggle-collect=*counted_from_here*", f"--callgrind-out-file={out}", *extra]
    ran = subprocess.run([*command, program, name], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    collected = re.search(r"Collected\s*:\s*(\d+)", ran.stderr)
    if ran.returncode or not collected or not int(collected[1]):
        fail(f"{name}: nothing counted\n{ran.stderr}")
    return int(collected[1])


def scenarios(program):
    """Calls of each scenario, by name."""
    listed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(calls) for name, calls in map(str.split, listed.splitlines())}


def count(program, wanted):
    """Instructions per call of each scenario, one valgrind a core."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        totals = pool.map(lambda name: callgrind(program, name), wanted)
        return {name: round(total / wanted[name]) for name, total in zip(wanted, totals)}


def surroundings():
    """What moves counts and is not ours. valgrind shows a program no more than AVX2, whatever the machine has."""
    flags = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    rustc = subprocess.run(["rustc", "--version"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return {"rustc": rustc, "machine": os.uname().machine, "avx2": bool(flags and "avx2" in flags[1].split()),
            "libc": " ".join(platform.libc_ver())}


def compare(counted, committed, foreign):
    """Prints the table; returns the scenarios that are off, by verdict."""
    tolerance = FOREIGN_TOLERANCE_PERCENT if foreign else TOLERANCE_PERCENT
    off = {"more": [], "less": [], "not committed": []}
    print(f"{'instructions per call':28} {'committed':>12} {'now':>12} {'change':>8}")
    for name, now in counted.items():
        before = committed.get(name)
        change = (now / before - 1) * 100 if before else None
        verdict = ""
        if before is None:
            verdict = "not committed"
        elif change > tolerance:
            verdict = "more"
        elif change < -tolerance and not foreign:
            verdict = "less"
        if verdict:
            off[verdict].append(name)
        shown = f"{change:+7.1f}%" if before else f"{'':8}"
        print(f"{name:28} {before or '-':>12} {now:>12} {shown} {verdict}".rstrip())
    return off, tolerance


def gate(counted, wanted_all):
    recorded = json.loads(COUNTS.read_text())
    here, there = surroundings(), recorded["counted_with"]
    foreign = [f"{key}: {there.get(key)} there, {here[key]} here" for key in here if here[key] != there.get(key)]
    for difference in foreign:
        print(f"warning: counted with another {difference}; refusing only {FOREIGN_TOLERANCE_PERCENT} % more")
    committed = recorded["instructions_per_call"]
    off, tolerance = compare(counted, committed, foreign)
    gone = sorted(set(committed) - set(counted)) if wanted_all else []
    if off["more"]:
        print(f"\nRED: over {tolerance} % more instructions: {', '.join(off['more'])}")
    if off["less"]:
        print(f"\nRED: over {tolerance} % fewer instructions, a gain to keep: bench/instructions.py --update "
              f"({', '.join(off['less'])})")
    if off["not committed"] or gone:
        print(f"\nRED: scenarios came or went: bench/instructions.py --update ({', '.join(off['not committed'] + gone)})")
    return 1 if any(off.values()) or gone else 0


def profile(program, name, calls):
    shutil.which("callgrind_annotate") or fail("callgrind_annotate is not installed")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        callgrind(program, name, out)
        command = ["callgrind_annotate", "--threshold=100", "--auto=no", out]
        annotated = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # One line a source file and function; what was inlined is the function's it was inlined into.
    spent = collections.Counter()
    for instructions, function in re.findall(r"^ *([\d,]+) \([^)]*%\)  \S+?:(.+?)(?: \[.*\])?$", annotated, re.MULTILINE):
        spent[function] += int(instructions.replace(",", ""))
    total = sum(spent.values())
    print(f"{name}: {total / calls:,.0f} instructions per call")
    for function, instructions in spent.most_common(PROFILE_LINES):
        print(f"{instructions / total * 100:6.1f}% {instructions / calls:>12,.0f}  {function[:FUNCTION_CHARACTERS]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--profile", metavar="NAME")
    options = parser.parse_args()
    shutil.which("valgrind") or fail("valgrind is not installed: apt-get install valgrind")
    program = build()
    known = scenarios(program)
    unknown = set(options.only or []) | ({options.profile} if options.profile else set())
    if unknown - set(known):
        fail(f"no scenario {', '.join(sorted(unknown - set(known)))}; known: {', '.join(known)}")
    if options.profile:
        return profile(program, options.profile, known[options.profile])
    wanted = {name: calls for name, calls in known.items() if name in (options.only or known)}
    counted = count(program, wanted)
    if options.update:
        if options.only:
            fail("--update counts all")
        COUNTS.write_text(json.dumps({"counted_with": surroundings(), "instructions_per_call": counted}, indent=2) + "\n")
        print(f"wrote {COUNTS.relative_to(ROOT)}")
        return 0
    return gate(counted, not options.only)


if __name__ == "__main__":
    sys.exit(main())
