"""Defines the exception class of the package."""


class Error(RuntimeError):
    """Raised when a call or an operation fails. ``status`` is the name of the status code, such as
    "PEER_LOST"."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{text} [{status}]")
        self.status = status
