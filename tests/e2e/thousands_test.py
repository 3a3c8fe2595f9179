#!/usr/bin/env python3
"""The cost of an item does not grow with the number of items: from a quarter of the number on, twice as many items
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
# The items of the rounds after the first may leave KEPT_BYTES each. The least allocation has 32 bytes, so that one for
# every third item is too much. Pools may grow by POOL_BYTES in all, and by some blocks for data that passes the host.
KEPT_BYTES = 8
POOL_BYTES = 512 << 10
BLOCK_BYTES = 2 << 20

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
# Blocks that each transfer under way may have.
BLOCKS = {"pointers": 10_000, "plans_in_turn": 3, "plans_at_once": 3, "plans_with_tags": 3}
# More rounds, so that a leak weighs more than some blocks.
MORE_ROUNDS = {"plans_in_turn": 9, "plans_at_once": 9, "plans_with_tags": 9, "communicators": 9}


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
        rounds = MORE_ROUNDS.get(row, ROUNDS)
        *lines, (_, kept) = run(program, row, most, rounds, transport)
        items = (rounds - 1) * most * 7 // 4
        bound = POOL_BYTES + items * KEPT_BYTES + BLOCKS.get(row, 0) * BLOCK_BYTES
        assert int(kept) < bound, f"{row} over {transport}: {items} items leave {kept} bytes, at most {bound}"
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
    if unknown := set(chosen) - set(ROWS):
        sys.exit(f"there is no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
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
