"""Registers the backend when torch is imported: torch calls register().

``hetcomm.torch`` imports torch. If a program imports ``hetcomm.torch`` first, torch calls
register() before that module is complete. The module then registers the backend itself, at its end.
"""

import sys


def register() -> None:
    module = sys.modules.get("hetcomm.torch")
    if module is None:
        import hetcomm.torch as module
    if hasattr(module, "register"):
        module.register()
