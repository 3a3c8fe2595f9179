"""The part of hetcomm_bench in Python: peers of a comparison, and pictures.

hetcomm_bench runs this folder as a program:

  check compare|plot     says on standard error what is missing for that, and ends with status 2
  peers                  reads a question from standard input, answers with the peers that are there (peers.py)
  plot FILE              draws the JSON of hetcomm_bench on standard input (plot.py)
  iperf3, perftest ...   measures as a rank does: prints measurement lines (pairs.py)

The standard library suffices for all but plot. Every process that is started here ends with this one.
"""

import os
import signal
import sys


def check(need):
    print("python")  # to whoever asks whether this interpreter runs at all
    if need != "plot":
        return 0
    try:
        import matplotlib.figure  # noqa: F401  the check is whether it can be imported
    except ImportError as error:
        print(f"hetcomm_bench: --plot needs matplotlib, and {sys.executable} cannot import it ({error}): install it "
              "(Debian: python3-matplotlib, else: python3 -m pip install matplotlib), or name another Python by "
              "HETCOMM_PYTHON", file=sys.stderr)
        return 2
    return 0


def main(arguments):
    # hetcomm_bench put this process into a group of its own. If hetcomm_bench is gone, nobody else ends the group.
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    command, *rest = arguments
    if command == "check":
        return check(*rest)
    if command == "peers":
        import peers
        return peers.answer(sys.stdin, sys.stdout)
    if command == "plot":
        import plot
        return plot.draw(sys.stdin, *rest)
    import pairs
    return pairs.measure(command, *rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
