"""Measures with peers that consist of a server and a client: iperf3, and the tools of perftest.

For hetcomm_bench, a process that runs this module acts like a rank: it prints measurement lines
(bench/loops/workload.h).
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time

PERFTEST = {
    "latency": "ib_send_lat",
    "bandwidth": "ib_send_bw",
    "bibandwidth": "ib_send_bw -b",
    "put_latency": "ib_write_lat",
    "put_bandwidth": "ib_write_bw",
    "put_notify_latency": "ib_send_lat",
    "put_notify_bandwidth": "ib_send_bw",
    "get_latency": "ib_read_lat",
    "get_bandwidth": "ib_read_bw",
    "fetch_add_latency": "ib_atomic_lat -A FETCH_AND_ADD",
    "fetch_add_rate": "ib_atomic_bw -A FETCH_AND_ADD",
}


class Failed(Exception):
    """Raised with the reason why there is no measurement."""


def line_of(size, window, iterations, messages, total_us, **times):
    """Returns a measurement line."""
    fields = {"bytes": size, "window": window, "iterations": iterations, "messages": messages, "wrong": -1,
              "total_us": total_us, **times}
    return "R " + " ".join(f"{name}={value!r}" for name, value in fields.items())


# --- a server and its client ---------------------------------------------------------------------

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port):
    """Returns whether a process listens on the port. Reads /proc, since the server would mistake a test connection
    for the client."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as lines:
            for line in lines:
                fields = line.split()
                if fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                    return True
    return False


def start(command, cpu, output):
    bind = None if cpu < 0 else lambda: os.sched_setaffinity(0, {cpu})
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, text=True, preexec_fn=bind)


def end(process):
    process.kill()
    process.communicate()


def await_listener(server, port, seconds=10):
    """Waits until the server listens. Raises Failed if the server exits first. Returns after
    `seconds` in any case: the client then reports the failure."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not is_listening(port):
        if server.poll() is not None:
            raise Failed(f"{server.args[0]} ended before it listened on port {port}")
        time.sleep(0.01)


def output_of_client(server_command, client_command, port, cpus):
    """Runs a server and its client, and returns what the client prints. |cpus| are the cores of client and server,
    or -1 for any core."""
    with contextlib.ExitStack() as ended:
        server = start(server_command, cpus[1], subprocess.DEVNULL)
        ended.callback(end, server)
        await_listener(server, port)
        client = start(client_command, cpus[0], subprocess.PIPE)
        ended.callback(end, client)
        while True:
            try:
                output, _ = client.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if server.poll():
                    raise Failed(f"{server.args[0]} ended with status {server.returncode}") from None
        if server.poll():
            raise Failed(f"{server.args[0]} ended with status {server.returncode}")
        if client.returncode != 0:
            raise Failed(f"{client.args[0]} ended with status {client.returncode}")
        return output


# --- iperf3: one stream without messages, so one measurement serves all sizes ---------------------

def iperf3_lines(output, points):
    document = json.loads(output)
    if "error" in document:
        raise Failed(document["error"])
    received = document["end"]["sum_received"]
    for size, window in points:
        messages = received["bytes"] / max(size, 1)
        whole = max(int(messages), 1)
        yield line_of(size, window, whole, whole, received["seconds"] * 1e6 * whole / messages)


def iperf3(program, work):
    port = free_port()
    output = output_of_client([program, "--server", "--one-off", "--bind", "127.0.0.1", "--port", str(port)],
                              [program, "--client", "127.0.0.1", "--port", str(port), "--time", "1", "--json"],
                              port, work["cpus"])
    yield from iperf3_lines(output, work["points"])


# --- perftest: one server and one client for each size --------------------------------------------

def perftest_command(program, work, size, window, port):
    command = [program, *PERFTEST[work["test"]].split()[1:], *work["device"], "-F", "-p", str(port)]
    latency = work["test"].endswith("latency")
    # The size of atomics is fixed to one word.
    if not work["test"].startswith("fetch_add_"):
        command += ["-s", str(size)]
    if not latency:
        command += ["-t", str(window)]
    # Runs the tool for a fixed number of messages, since in a fixed time it might not complete any
    # long message. 256 MiB take a moment on an adapter, and seconds in emulation.
    count = work["iterations"] or (1000 if latency else min(max((256 << 20) // max(size, 1), 2 * window), 5000))
    return [*command, "-n", str(max(count, 5))]


def perftest_line(line, test, size, window):
    """Returns the measurement line for a line of the tool's table, or None for other lines."""
    try:
        numbers = [float(word) for word in line.split()]
    except ValueError:
        return None
    latency = test.endswith("latency")
    if len(numbers) != (9 if latency else 5) or numbers[0] != size or numbers[1] < 1:
        return None
    count = int(numbers[1])
    if latency:
        least, most, median, mean, deviation, p99, p999 = numbers[2:]
        return line_of(size, window, count, count, mean * count, min_us=least, max_us=most, p50_us=median,
                       stdev_us=deviation, p99_us=p99, p999_us=p999)
    messages = count * (2 if test == "bibandwidth" else 1)
    # The tool prints units of 2^20 bytes per second with two decimals, and messages per us with six. The size decides
    # which of the two is more precise.
    by_bytes = numbers[3] / 1e-2 > numbers[4] / 1e-6
    per_us = numbers[3] * 1.048576 / size if by_bytes else numbers[4]
    return line_of(size, window, count, messages, messages / per_us) if per_us > 0 else None


def perftest(program, work):
    for size, window in work["points"]:
        port = free_port()
        command = perftest_command(program, work, size, window, port)
        output = output_of_client(command, [*command, "127.0.0.1"], port, work["cpus"])
        yield from filter(None, (perftest_line(line, work["test"], size, window) for line in output.splitlines()))


def measure(peer, program, work):
    try:
        for line in {"iperf3": iperf3, "perftest": perftest}[peer](program, json.loads(work)):
            print(line, flush=True)
    except (Failed, ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        print(f"{peer}: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


def version_in(text):
    """Extracts the version from the text that a tool prints about itself."""
    found = re.search(r"ersion\D*(\S+)", text)
    return found.group(1) if found else "unknown"
