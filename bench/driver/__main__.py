"""The Python driver of hetcomm_bench, which finds and runs the peers of a comparison, and draws
pictures.

hetcomm_bench runs this folder as a program:

  check NEED             prints "python", then what is missing for "compare", "plot", "compare torch" and the like;
                         status 2 if anything is missing
  pipelines              reads a question, and measures pipelines over emulated links, or
                         compares them with torch's (pipelines.py)
  peers                  prints the available peers for a Question from standard input (peers.py)
  plot FILE              draws the JSON of hetcomm_bench from standard input into FILE (plot.py)
  iperf3, perftest ...   measures a peer and prints measurement lines, as a rank does (pairs.py)

Everything except plot needs only the standard library. All processes that are started here end
with this one.
"""

import os
import signal
import sys


OLDEST_PYTHON = (3, 8)
OLDEST_MATPLOTLIB = (3, 6)


def lack_of(need):
    """Returns what this interpreter lacks for an option, or "" if it lacks nothing."""
    if sys.version_info < OLDEST_PYTHON:
        return "--%s needs Python %d.%d, and %s is older" % (need, *OLDEST_PYTHON, sys.executable)
    if need == "compare torch":
        return lack_of_torch()
    if need != "plot":
        return ""
    how = ("install it (Debian: python3-matplotlib, else: python3 -m pip install matplotlib), or name another Python "
           "by HETCOMM_PYTHON")
    try:
        import matplotlib.figure
    except ImportError as error:
        return f"--plot needs matplotlib, and {sys.executable} cannot import it ({error}): {how}"
    if tuple(int(word) for word in matplotlib.__version__.split(".")[:2]) < OLDEST_MATPLOTLIB:
        return (f"--plot needs matplotlib {'.'.join(map(str, OLDEST_MATPLOTLIB))}, and {sys.executable} has "
                f"{matplotlib.__version__}: {how}")
    return ""


def lack_of_torch():
    try:
        import torch
        import hetcomm.torch
    except ImportError as error:
        return (f"--compare torch needs torch and hetcomm's Python package, and {sys.executable} cannot import them "
                f"({error}): name another Python by HETCOMM_PYTHON, and for a build tree its python/ by PYTHONPATH")
    return ""


def check(need):
    """Prints "python", which shows hetcomm_bench that this interpreter works, and then what it
    lacks."""
    print("python")
    lack = lack_of(need)
    if lack:
        print(lack)
    return 2 if lack else 0


def main(arguments):
    # hetcomm_bench has put this process into a separate process group. If hetcomm_bench has exited,
    # only this process can kill the group.
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    command, *rest = arguments
    if command == "check":
        return check(*rest)
    if command == "peers":
        import peers
        return peers.answer(sys.stdin, sys.stdout)
    if command == "pipelines":
        import pipelines
        return pipelines.answer(sys.stdin, sys.stdout)
    if command == "plot":
        import plot
        return plot.draw(sys.stdin, *rest)
    import pairs
    return pairs.measure(command, *rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
