"""Creation of a communicator of many ranks, whose traffic is counted:

    creation_test.py CREATION_RANK [--ranks 4096] [--each 256] [--alone 0,1,32] [--small-job N] [--pause S] [--json]

Most ranks share processes, --each of them in one, as threads with a context each. Those of --alone have a
process of their own, so that their bytes and their memory are known. Proves: all ranks create the communicator,
then exchange messages with a rank that they have not communicated with before, and after a pause create a second
communicator over the same job, which costs little (docs/scaling.md). Above HETCOMM_SMALL_JOB each rank receives
less than 1 MiB and sends less than 64 KiB (rank 0 without its store), and the store sends less than the square of
the number of ranks would need.
"""
import argparse
import json
import os
import sys
import time

from rank_process import Rank, free_port


def most_sent(ranks):
    return min(64 << 10, (8 << 10) + 16 * ranks)


def most_received(ranks):
    return min(1 << 20, (8 << 10) + 40 * ranks)


class Process(Rank):
    def __init__(self, program, first, count, size, environment):
        self.first, self.count = first, count
        super().__init__([program, str(first), str(count), str(size)], environment)

    def stage(self, name, timeout):
        """Waits until all ranks of the process have reached |name|: their traffic so far, seconds, memory in KiB."""
        threads = []
        end = time.monotonic() + timeout
        while True:
            line = self.expect("", max(1, end - time.monotonic())).split()
            if line[0] == "traffic":
                threads.append((line[1], *map(int, line[2:])))
            elif line[0] == name:
                return {"threads": threads, "seconds": float(line[1]), "kib": int(line[2])}


def traffic_of(rank, stage):
    """(sent, received, sends) of the rank itself, and of its store if it is rank 0."""
    threads = [thread[1:] for thread in stage["threads"]]
    stores = sorted((thread[1:] for thread in stage["threads"] if thread[0] == "hetcomm-store"), reverse=True)
    store = stores[0] if rank == 0 and stores else (0, 0, 0)
    total = [sum(column) for column in zip(*threads)]
    return [own - of_store for own, of_store in zip(total, store)], store


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--each", type=int, default=64)
    parser.add_argument("--alone", default="0")
    parser.add_argument("--small-job", type=int, default=128)
    parser.add_argument("--timeout", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    alone = [int(rank) for rank in options.alone.split(",") if rank]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                       HETCOMM_TRANSPORTS="tcp", HETCOMM_INTERFACE="lo",
                       HETCOMM_SMALL_JOB=str(options.small_job),
                       HETCOMM_BOOTSTRAP_TIMEOUT=f"{options.timeout}s",
                       HETCOMM_DETECTION_TIME="60s", HETCOMM_SPIN_TIME="0")
    environment.setdefault("HETCOMM_LOG", "error")
    processes = []
    rank = 0
    while rank < options.ranks:
        count = 1
        if rank not in alone:
            while count < options.each and rank + count < options.ranks and rank + count not in alone:
                count += 1
        processes.append(Process(options.program, rank, count, options.ranks, environment))
        rank += count
    try:
        ranks, total_s = measure(processes, alone, options)
    except AssertionError:
        for process in processes:
            process.process.kill()
        raise
    check(ranks, options)
    print_result(ranks, total_s, options)


def measure(processes, alone, options):
    ranks = {}
    total_s = {}
    for stage in ("ready", "created", "talked", "shared"):
        begin = time.monotonic()
        for process in processes:
            found = process.stage(stage, options.timeout)
            if process.first in alone:
                ranks.setdefault(process.first, {})[stage] = found
        total_s[stage] = time.monotonic() - begin
        if stage == "talked":
            time.sleep(options.pause)
        for process in processes:
            process.say()
    for process in processes:
        process.expect("ended", options.timeout)
        assert process.process.wait(options.timeout) == 0
    return ranks, total_s


def most_to_share(ranks):
    return (4 << 10) + 8 * ranks


def check(ranks, options):
    if options.ranks <= options.small_job:
        return
    for rank, stages in ranks.items():
        own, store = traffic_of(rank, stages["created"])
        assert own[0] < most_sent(options.ranks), f"rank {rank} has sent {own[0]} bytes"
        assert own[1] < most_received(options.ranks), f"rank {rank} has received {own[1]} bytes"
        # A second communicator over the same job: cards, and a digest with some bytes for each rank.
        talked, shared = (traffic_of(rank, stages[stage])[0] for stage in ("talked", "shared"))
        assert shared[0] - talked[0] < most_to_share(options.ranks), f"rank {rank} has sent {shared[0] - talked[0]} bytes to share"
        # A leader gets the parts of all blocks, too.
        assert shared[1] - talked[1] < 2 * most_to_share(options.ranks), f"rank {rank} has received {shared[1] - talked[1]} bytes to share"
        # Less than 16 bytes of each rank to each, as soon as blocks are long.
        if options.ranks >= 1024:
            assert store[0] < 16 * options.ranks ** 2, f"the store has sent {store[0]} bytes"


def print_result(ranks, total_s, options):
    rows = []
    for rank, stages in ranks.items():
        for stage in ("created", "talked", "shared"):
            own, store = traffic_of(rank, stages[stage])
            rows.append({"rank": rank, "until": stage, "sent": own[0], "received": own[1], "sends": own[2],
                         "store_sent": store[0], "store_received": store[1], "store_sends": store[2],
                         "memory_kib": stages[stage]["kib"] - stages["ready"]["kib"]})
    if options.json:
        json.dump({"ranks": options.ranks, "seconds": total_s, "rows": rows}, sys.stdout, indent=1)
        print()
        return
    print(f"{options.ranks} ranks: created in {total_s['created']:.2f} s, first messages in "
          f"{total_s['talked']:.2f} s, a second one over the same job in {total_s['shared']:.2f} s")
    for rank, stages in ranks.items():
        talked, shared = (traffic_of(rank, stages[stage])[0] for stage in ("talked", "shared"))
        print(f"to share, rank {rank} has sent {shared[0] - talked[0]} and received {shared[1] - talked[1]} bytes")
    print(f"{'rank':>6} {'until':>8} {'sent':>9} {'received':>9} {'sends':>7} {'memory KiB':>11}   store: sent, received, sends")
    for row in rows:
        store = f"{row['store_sent']}, {row['store_received']}, {row['store_sends']}" if row["store_sent"] else ""
        print(f"{row['rank']:>6} {row['until']:>8} {row['sent']:>9} {row['received']:>9} {row['sends']:>7} "
              f"{row['memory_kib']:>11}   {store}")


if __name__ == "__main__":
    main()
