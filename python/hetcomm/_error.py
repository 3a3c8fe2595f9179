"""The exception of the package."""


class Error(RuntimeError):
    """A call or an operation failed. ``status`` is the name of the reason, as "PEER_LOST"."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{text} [{status}]")
        self.status = status
