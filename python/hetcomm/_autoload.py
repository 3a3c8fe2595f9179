"""What torch calls when it is imported.

``hetcomm.torch`` imports torch. Whoever imports it first comes here before it is complete; it
registers the backend itself at its end.
"""

import sys


def register() -> None:
    module = sys.modules.get("hetcomm.torch")
    if module is None:
        import hetcomm.torch as module
    if hasattr(module, "register"):
        module.register()
