"""Runs in gdb: prints the stacks at which an operation of rank 0 of trips.cc is handed on.

One line of JSON in the file TRIP_RECORDS for each stop: the trip, the function, and the frames from the outermost to
the innermost, each as function and file. Frames that the compiler has inlined are there, too. The last line has the
program's exit status.
"""
import json
import os

import gdb

trip = None
stops = []
records = open(os.environ["TRIP_RECORDS"], "w", encoding="utf-8")


def put(record):
    records.write(json.dumps(record) + "\n")
    records.flush()


def frames():
    found = []
    frame = gdb.newest_frame()
    while frame is not None:
        symtab = frame.find_sal().symtab
        found.append([frame.name() or "", symtab.fullname() if symtab is not None else ""])
        frame = frame.older()
    return found[::-1]


class Begin(gdb.Breakpoint):
    def stop(self):
        global trip
        trip = gdb.parse_and_eval("*(char**)&trip_name").string()
        for stop in stops:
            stop.enabled = True
        return False


class End(gdb.Breakpoint):
    def stop(self):
        for stop in stops:
            stop.enabled = False
        return False


class Stop(gdb.Breakpoint):
    def stop(self):
        put({"trip": trip, "at": self.location, "frames": frames()})
        return False


for setting in ("pagination off", "breakpoint pending on", "debuginfod enabled off", "print thread-events off",
                "disable-randomization off"):
    gdb.execute("set " + setting)
Begin("trip_begin")
End("trip_end")
gdb.execute("start")
stops = [Stop(name) for name in json.loads(os.environ["TRIP_STOPS"])]
for each in stops:
    each.enabled = False
gdb.execute("continue")
status = gdb.convenience_variable("_exitcode")
put({"status": int(status) if status is not None else -1})
