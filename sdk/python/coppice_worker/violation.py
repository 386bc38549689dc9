"""What a peer may never put on the wire."""


class Violation(Exception):
    """A breach of the protocol. name is one of the names in PROTOCOL.md; detail is for people."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(name, detail)
        self.name = name
        self.detail = detail

    def __str__(self) -> str:
        return f"protocol violation: {self.name}: {self.detail}"
