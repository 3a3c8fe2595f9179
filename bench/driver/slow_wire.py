#!/usr/bin/env python3
"""Connects two interfaces of this network namespace by a wire that delays frames. It emulates a
long distance if the kernel cannot delay packets (sch_netem).

slow_wire.py FIRST SECOND MILLISECONDS    prints "ready", and runs until a signal ends it
"""

import collections
import contextlib
import os
import select
import socket
import sys
import time

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15  # passes large segments and unfinished checksums unchanged
PACKET_IGNORE_OUTGOING = 23
LONGEST_FRAME = 1 << 17
BUFFER_BYTES = 32 << 20


def open_end(interface):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (32, 33):  # SO_SNDBUFFORCE, SO_RCVBUFFORCE
        end.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    end.setblocking(False)
    end.bind((interface, ETH_P_ALL))
    return end


def main():
    # Real-time priority prevents busy ranks from delaying frames further. Some containers forbid
    # it.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    delay = float(sys.argv[3]) * 1e-3
    ends = [open_end(name) for name in sys.argv[1:3]]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way = collections.deque()  # (arrival time, destination, frame), in order of arrival
    print("ready", flush=True)
    while True:
        wait = max(under_way[0][0] - time.monotonic(), 0) if under_way else None
        readable, _, _ = select.select(ends, [], [], wait)
        now = time.monotonic()
        for end in readable:
            try:
                while True:
                    under_way.append((now + delay, other[end], end.recv(LONGEST_FRAME)))
            except BlockingIOError:
                pass
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, frame = under_way.popleft()
            try:
                end.send(frame)
            except OSError:
                pass  # a full queue drops frames, as real networks do


if __name__ == "__main__":
    main()
