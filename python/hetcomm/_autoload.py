"""Registers the backend. PyTorch calls register() when it is imported.

``hetcomm.torch`` imports PyTorch. If a program imports ``hetcomm.torch`` first, PyTorch calls
register() before that module is complete. The module then registers the backend itself, at the end
of its code.
"""

import sys


def register() -> None:
    module = sys.modules.get("hetcomm.torch")
    if module is None:
        import hetcomm.torch as module
    if hasattr(module, "register"):
        module.register()
