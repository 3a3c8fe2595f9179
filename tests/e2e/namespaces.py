"""What tests in network namespaces share."""

import subprocess
import time


def sh(*words):
    subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_until_up(name, device):
    """Returns when |device| of namespace |name| has a carrier."""
    deadline = time.monotonic() + 10
    while True:
        shown = subprocess.run(["ip", "-n", name, "link", "show", device], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        if "state UP" in shown:
            return
        assert time.monotonic() < deadline, f"{name}: {device} does not come up"
        time.sleep(0.05)
