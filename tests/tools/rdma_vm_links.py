#!/usr/bin/env python3
"""In a guest of tools/rdma-vm with two hosts: links have the rate that was asked for, two of them add
up, and a cable that is pulled stops what crosses it and nothing else, until it is put back.

  rdma_vm_links.py MBIT DEVICE DEVICE     the rate, and the second host's RDMA device on each link
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

if not Path("/run/hetcomm-vm/shape").exists():
    print("not in a guest: the links here are not this test's to cut")
    sys.exit(77)

RATE = float(sys.argv[1])
DEVICES = sys.argv[2:4]
SECONDS = 3  # of one measurement
BLOCK = 65536
# 2^18 * 4 us: what a slow link holds back takes longer than the default of 2^14.
COMMON = ["ib_write_bw", "-F", "-x", "1", "-u", "18", "-s", str(BLOCK)]
ports = iter(range(18600, 18700))


class Transfer:
    """RDMA writes from host 0 to host 1 over one link."""

    def __init__(self, link, iterations):
        port = next(ports)
        options = [*COMMON, "-n", str(iterations), "-p", str(port)]
        listening = f"grep -qi ':{port:04X} [0-9A-F:]* 0A' /proc/net/tcp /proc/net/tcp6"
        self.server = subprocess.Popen(
            ["on-host", "1", "timeout", "120", *options, "-d", DEVICES[link]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        subprocess.run(
            ["on-host", "1", "timeout", "60", "bash", "-c", f"until {listening}; do sleep 0.1; done"],
            check=True, timeout=90,
        )
        self.client = subprocess.Popen(
            ["on-host", "0", "timeout", "120", *options, "-d", f"rxe{link}", "192.0.2.2"],
            stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )
        self.samples = []
        counters = f"/sys/class/infiniband/rxe{link}/ports/1/hw_counters"
        self.sampler = threading.Thread(target=self.sample, args=(Path(counters, "sent_pkts"),))
        self.sampler.start()

    def sample(self, counter):
        while self.client.poll() is None:
            self.samples.append((time.monotonic(), int(counter.read_text())))
            time.sleep(0.02)

    def rate(self):
        """Mbit/s in the middle of the transfer. perftest's own figure needs a steady CPU clock."""
        first, last = self.samples[0][1], self.samples[-1][1]
        low, high = first + (last - first) * 0.1, first + (last - first) * 0.9
        middle = [each for each in self.samples if low <= each[1] <= high]
        if len(middle) < 2:
            sys.exit("too few samples of a transfer")
        seconds = middle[-1][0] - middle[0][0]
        return (middle[-1][1] - middle[0][1]) * 4096 * 8 / 1e6 / seconds

    def end(self):
        """Status and Mbit/s."""
        status = self.client.wait(140)
        self.sampler.join()
        if status:
            self.server.terminate()
        self.server.wait(140)
        return status, self.rate() if status == 0 else 0.0


ENOUGH = int(SECONDS * RATE * 1e6 / 8 / BLOCK)


def measure(*links):
    transfers = [Transfer(link, ENOUGH) for link in links]
    began = time.monotonic()
    results = [each.end() for each in transfers]
    print(f"links {links}: {[f'{rate:.1f} Mbit/s' for _, rate in results]} of {RATE:g}, "
          f"{time.monotonic() - began:.1f} s", flush=True)
    if any(status for status, _ in results):
        sys.exit(f"a transfer failed: {results}")
    for _, rate in results:
        # The payload is a little less than what is on the link, the first burst a little more.
        if rate > RATE * 1.1:
            sys.exit(f"a link lets through more than {RATE:g} Mbit/s")
    return sum(rate for _, rate in results)


one = [measure(0), measure(1)]
both = measure(0, 1)
if both < 1.4 * max(one):
    sys.exit(f"two links carry {both:.1f} Mbit/s, one {max(one):.1f}")

# perftest asks for 7 retries, which Soft-RoCE takes for no end of them: the transfer waits.
cut = Transfer(1, ENOUGH * 3)
time.sleep(0.5)
if cut.client.poll() is not None:
    sys.exit("the transfer to be cut has ended already")
subprocess.run(["set-link", "1", "1", "down"], check=True, timeout=60)
measure(0)
time.sleep(SECONDS)
if cut.client.poll() is not None:
    sys.exit(f"a transfer over a link that is down ended: {cut.end()}")
subprocess.run(["set-link", "1", "1", "up"], check=True, timeout=60)
began = time.monotonic()
if cut.end()[0] != 0:
    sys.exit("a transfer failed although its link came back")
print(f"it went on and ended {time.monotonic() - began:.1f} s after the link was back", flush=True)
measure(1)
