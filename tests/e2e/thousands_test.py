#!/usr/bin/env python3
"""What an item costs does not grow with the number of items: twice as many of them, from a quarter of the number on,
take at most 2.4 times as long, by the median of five runs. Nothing is kept for an item that has ended.

    thousands_test.py PROGRAM [ROW...]    those rows only, with a table of all figures
"""
import os
import statistics
import subprocess
import sys

from rank_process import free_port

MOST_FACTOR = 2.4
ROUNDS = 5
TIMEOUT_S = 600
KEPT_BYTES = 24  # the least allocation for each item of a round would be 56 for each of the most
POOL_BYTES = 64 << 10  # pools may still grow by that in a round
CHUNK_BLOCK_BYTES = 2 << 20  # a transfer through the host has such a block, which its pool keeps

REQUESTS = 300_000
ROWS = {
    "receives_first": REQUESTS,
    "receives_first_reversed": REQUESTS,
    "sends_first": REQUESTS,
    "sends_first_reversed": REQUESTS,
    "any_source": REQUESTS,
    "any_source_late": REQUESTS,
    "masked_tags": REQUESTS,
    "masked_tags_late": REQUESTS,
    "masks_by_turns": REQUESTS,
    "masks_by_turns_late": REQUESTS,
    "prepared": REQUESTS,
    "cancelled_receives": REQUESTS,
    "cancelled_sends": REQUESTS,
    "overdue": REQUESTS,
    "broadcasts": 120_000,
    "puts": REQUESTS,
    "gets": REQUESTS,
    "memories": 40_000,
    "pointers": 10_000,
    "plans_in_turn": 10_000,
    "plans_at_once": 10_000,
    "plans_with_tags": 10_000,
    "groups": 40_000,
    "group_of_many": REQUESTS,
    "communicators": 1_000,
    "lost": 100_000,
}
TRANSPORTS = ("shm", "tcp")


def run(program, row, count, rounds, transport):
    """The lines that the program printed, as words."""
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), HETCOMM_TRANSPORTS=transport)
    if row == "pointers":
        environment["HETCOMM_DEVICES"] = "sim-address"
    done = subprocess.run([program, row, str(count), str(rounds)], env=environment, capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{row} over {transport}: {done.stdout} {done.stderr}"
    return [line.split() for line in done.stdout.splitlines()]


def measure(program, row, most, transport):
    """Seconds by the number of items, one for each round."""
    if row == "lost":
        lines = [run(program, row, count, 1, transport)[0]
                 for _ in range(ROUNDS) for count in (most // 4, most // 2, most)]
    else:
        *lines, (_, kept) = run(program, row, most, ROUNDS, transport)
        # A round may have more of the items under way at the same time than the one before it.
        bound = POOL_BYTES + most * (CHUNK_BLOCK_BYTES if row == "pointers" else KEPT_BYTES)
        assert int(kept) < bound, f"{row} over {transport}: each round leaves {kept} bytes and more"
    seconds = {}
    for count, time in lines:
        seconds.setdefault(int(count), []).append(float(time))
    return seconds


def factors(seconds):
    """By how much longer each doubling takes, by the median of the rounds."""
    counts = sorted(seconds)
    return [statistics.median(more / fewer for fewer, more in zip(seconds[one], seconds[two]))
            for one, two in zip(counts, counts[1:])]


def main():
    program, *chosen = sys.argv[1:]
    slow = []
    for row in chosen or ROWS:
        for transport in TRANSPORTS:
            seconds = measure(program, row, ROWS[row], transport)
            found = factors(seconds)
            times = ", ".join(f"{count}: {statistics.median(each):.3f} s" for count, each in sorted(seconds.items()))
            print(f"{row:24} {transport:4} {times}; {' and '.join(f'{each:.2f}' for each in found)} x", flush=True)
            if max(found) > MOST_FACTOR:
                slow.append(f"{row} over {transport}")
    assert not slow, f"cost grows with the number of items: {', '.join(slow)}"


if __name__ == "__main__":
    main()
