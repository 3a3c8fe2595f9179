#!/usr/bin/env python3
"""Starts commands in the second guest of a pair, for on-host, over the control network.

  agent.py serve                 in the second guest: runs one command for each connection
  agent.py wait                  in the first guest: waits until the second one serves
  agent.py call NAME=VALUE... -- COMMAND...
                                 in the first guest: runs COMMAND in the second one, in the same folder
                                 and environment

A request is one line of JSON. The server sends back a sequence of frames. A frame has a kind (1 output,
2 error output, 0 exit status), a length and the content. When the connection ends, the server kills
the command.
"""

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

ADDRESS = ("169.254.77.2", 7077)
HEADER = struct.Struct("!BI")


def handle(connection):
    with connection, connection.makefile("rb") as incoming:
        request = json.loads(incoming.readline())
        if not request["command"]:
            return
        # Runs the command in the guest's own network, since this process is in the control network.
        command = ["nsenter", "--net=/proc/1/ns/net", *request["command"]]
        process = subprocess.Popen(
            command, cwd=request["folder"], env=request["environment"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )
        try:
            status = relay(process, connection)
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
            process.wait()
        connection.sendall(HEADER.pack(0, 4) + struct.pack("!i", status))


def relay(process, connection):
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, 1)
        selector.register(process.stderr, selectors.EVENT_READ, 2)
        selector.register(connection, selectors.EVENT_READ, 0)
        while len(selector.get_map()) > 1:
            # A process that the command has left running may keep the output open, so the loop ends
            # when the command itself has exited.
            ready = selector.select(0.2)
            if not ready and process.poll() is not None:
                break
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if key.data == 0:
                    raise ConnectionError("the caller is gone")
                if data:
                    connection.sendall(HEADER.pack(key.data, len(data)) + data)
                else:
                    selector.unregister(key.fileobj)
    while process.poll() is None:
        if selectors_readable(connection):
            raise ConnectionError("the caller is gone")
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def selectors_readable(connection):
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0.05))


def serve():
    with socket.create_server(ADDRESS, backlog=64) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()


def guarded(connection):
    try:
        handle(connection)
    except (OSError, ValueError) as failure:
        print(f"agent: {failure}", file=sys.stderr)


def request(command, environment):
    connection = socket.create_connection(ADDRESS, timeout=30)
    connection.settimeout(None)
    content = {"command": command, "folder": os.getcwd(), "environment": environment}
    connection.sendall(json.dumps(content).encode() + b"\n")
    return connection


def wait():
    while True:  # if the server never starts, the time limit of the machine's boot ends this loop
        try:
            request([], {}).close()
            return 0
        except OSError:
            time.sleep(0.05)


def call(arguments):
    split = arguments.index("--")
    environment = {**os.environ, **dict(each.split("=", 1) for each in arguments[:split])}
    outputs = {1: sys.stdout.buffer, 2: sys.stderr.buffer}
    with request(arguments[split + 1 :], environment) as connection:
        with connection.makefile("rb") as incoming:
            while header := incoming.read(HEADER.size):
                kind, size = HEADER.unpack(header)
                content = incoming.read(size)
                if kind == 0:
                    return struct.unpack("!i", content)[0]
                outputs[kind].write(content)
                outputs[kind].flush()
    print("on-host: the other guest did not answer", file=sys.stderr)
    return 125


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    sys.exit(wait() if sys.argv[1] == "wait" else call(sys.argv[2:]))
