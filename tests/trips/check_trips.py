#!/usr/bin/env python3
"""Holds the trips that docs/architecture.md shows to those that operations take.

A trip is the list of objects that are in charge of an operation on the rank that posts it, until its first byte goes to a
transport, or to a device. It is read from call stacks: a function that returns before the next object is called was never
in charge. An operation that is parked, for a pass or for a stream, stays in the charge of whoever parked it.

  * the page shows what was recorded, object by object with its file;
  * no trip has more than 12 hand-overs, and none visits an object three times.

Usage: check_trips.py --program PROGRAM --page PAGE [--write]. --write puts what was recorded into the page. Exits with 77 where
there is no gdb, or it may not trace.
"""
import argparse
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_HAND_OVERS = 12
MOST_VISITS = 2
SKIPPED = 77
ATTEMPTS = 5
RUN_SECONDS = 25

SEND = "hetcomm::tcp::TcpEndpoint::send"
PUT = "hetcomm::tcp::TcpEndpoint::put"
# The stops of each trip: the function, and an object that has to be on its stack.
TRIPS = {
    "queue push": [(PUT, "Tracks")],
    "put with notification": [(SEND, "RemoteAccess")],
    "send behind a stream": [("hetcomm::BatonLock::submit", "Poster"), ("hetcomm::Departures::add", "StreamGate"),
                             (SEND, "Departures")],
    "reshard start": [("hetcomm::reshard::Redistribution::note_ready", "Execution"), (PUT, "Execution")],
    "allreduce of device memory": [("hetcomm::Staging::start", "Collective")],
}
# Code that is in charge of nothing: it guards, or it is a value.
LEFT_OUT = ("src/wall/", "src/base/", "src/system/", "tests/")
BEGINS = "<!-- trips: written by tests/trips/check_trips.py --write -->"
ENDS = "<!-- end of trips -->"


def place_of(function, file, root):
    """(object, file) of one frame; None if it is in charge of nothing."""
    try:
        file = Path(file).resolve().relative_to(root).as_posix()
    except ValueError:
        return None
    if file.startswith(LEFT_OUT):
        return None
    plain = re.sub(r"[<({].*", "", function)
    classes = [part for part in plain.split("::") if part[:1].isupper()]
    return (classes[-1] if classes else Path(file).stem + "()", file)


def up_to(function, frames):
    """The frames up to the last one of |function|: what it calls first may be inlined where gdb stops."""
    last = max((i for i, (name, _) in enumerate(frames) if name.startswith(function)), default=len(frames) - 1)
    return frames[:last + 1]


def places_of(frames, root):
    """The objects on a stack, outermost first; neighbours that are the same count once."""
    found = [place for place in (place_of(*frame, root) for frame in frames) if place is not None]
    return [next(same) for _, same in itertools.groupby(found, key=lambda place: place[0])]


def trip_of(stops, records, root):
    """The places of one trip, from the records of its stops in their order; None if some are not there."""
    trip = []
    records = iter(records)
    for function, needed in stops:
        for record in records:
            places = places_of(up_to(function, record["frames"]), root)
            names = [name for name, _ in places]
            if record["at"] != function or needed not in names:
                continue
            if trip:
                parked = trip[-1][0]
                if parked not in names:
                    continue
                places = places[names.index(parked) + 1:]
            trip += places
            break
        else:
            return None
    return trip


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def may_trace():
    """Whether gdb is here, has Python, and may run a program."""
    if shutil.which("gdb") is None:
        return False
    run = subprocess.run(["gdb", "-q", "-nx", "-batch", "-ex", "set disable-randomization off", "-ex", "run", "-ex",
                          "python print('exit', gdb.convenience_variable('_exitcode'))", "true"],
                         capture_output=True, text=True, timeout=60)
    return "exit 0" in run.stdout


def record(program, folder):
    """The records of one run, by trip; None, and a line, if the run has failed."""
    env = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
               HETCOMM_TRANSPORTS="tcp", HETCOMM_DEVICES="sim-handle:memory=64M", HETCOMM_SECRET="not a secret at all")
    file = Path(folder, "records")
    file.write_text("")
    peer = subprocess.Popen([program], env=dict(env, RANK="1", LOCAL_RANK="1"), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
    stops = sorted({function for stops in TRIPS.values() for function, _ in stops})
    try:
        run = subprocess.run(
            ["gdb", "-q", "-nx", "-batch", "-x", str(Path(__file__).with_name("record.py")), program],
            env=dict(env, RANK="0", LOCAL_RANK="0", TRIP_STOPS=json.dumps(stops), TRIP_RECORDS=str(file)),
            capture_output=True, text=True, timeout=RUN_SECONDS)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        if not lines or lines[-1] != {"status": 0} or peer.wait(RUN_SECONDS) != 0:
            print(f"a run has failed:\n{run.stdout}{run.stderr}")
            return None
    except subprocess.TimeoutExpired:
        print(f"a run took more than {RUN_SECONDS} s")
        return None
    finally:
        peer.kill()
        peer.wait()
    found = {name: [] for name in TRIPS}
    for each in lines[:-1]:
        found[each["trip"]].append(each)
    return found


def text_of(trips):
    """The part of the page that shows the trips."""
    lines = []
    for name, places in trips.items():
        lines += [f"### Trip: {name}", "", "| step | in charge | file |", "|---|---|---|"]
        lines += [f"| {step} | `{who}` | `{file}` |" for step, (who, file) in enumerate(places)]
        lines.append("")
    return "\n".join(lines)


def faults_of(trips):
    faults = []
    for name, places in trips.items():
        if len(places) - 1 > MOST_HAND_OVERS:
            faults.append(f"{name}: {len(places) - 1} hand-overs; {MOST_HAND_OVERS} are the most")
        names = [who for who, _ in places]
        faults += [f"{name}: {who} is visited {names.count(who)} times" for who in sorted(set(names))
                   if names.count(who) > MOST_VISITS]
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--page", required=True, type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if not may_trace():
        print("skipped: no gdb with Python that may trace")
        return SKIPPED
    root = Path(__file__).resolve().parents[2]
    page = options.page.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGINS)
    shown, _, after = rest.partition(ENDS)

    # Another thread may have the baton when an operation is posted, or a peer is late: then the operation takes a longer way
    # in that run. Each trip that a run took as the page shows it counts; the others have to be as shown in a later run.
    trips = {}
    agreed = set()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ATTEMPTS):
            records = record(options.program, folder)
            for name, stops in TRIPS.items():
                trip = trip_of(stops, records[name], root) if records is not None else None
                if trip is None or name in agreed:
                    continue
                trips[name] = trip
                if options.write or text_of({name: trip}).strip() in shown:
                    agreed.add(name)
            if len(agreed) == len(TRIPS):
                break
    missing = [name for name in TRIPS if name not in trips]
    if missing:
        sys.exit(f"not recorded: {', '.join(missing)}")
    trips = {name: trips[name] for name in TRIPS}
    for name, places in trips.items():
        print(f"{len(places) - 1:3} hand-overs: {name}: {', '.join(who for who, _ in places)}")
    faults = faults_of(trips)
    if options.write:
        options.page.write_text(f"{before}{BEGINS}\n\n{text_of(trips)}\n{ENDS}{after}", encoding="utf-8")
    elif text_of(trips).strip() != shown.strip():
        faults.append(f"{options.page.name} shows other trips: run check_trips.py --write, and read what has changed")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
