"""What a user's file uses: the decorators, what a function gets, and what it returns."""

from __future__ import annotations

import time

from .wire import scrub

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from datetime import datetime
    from typing import Any, Callable, Iterator, Optional, Union

    from .hl7 import HL7

    Function = Callable[["Message", "Context"], Any]
    Body = Union[bytes, bytearray, memoryview, str, HL7]

ROUTE, HANDLE = "route", "handle"
_WORDS = {ROUTE: "@router", HANDLE: "@handler"}


class Registry:
    """The functions that a file offers, by phase and name."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str], Function] = {}

    def add(self, phase: str, name: Optional[str], function: Function) -> None:
        name = function.__name__ if name is None else name
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a {_WORDS[phase]} is a string that is not empty, not {name!r}")
        if (phase, name) in self._functions:
            raise ValueError(f'two {_WORDS[phase]} functions are named "{name}"')
        self._functions[phase, name] = function

    def get(self, phase: str, name: str) -> Optional[Function]:
        return self._functions.get((phase, name))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._functions)


OFFERED = Registry()


def _offering(phase: str, function: Optional[Function], name: Optional[str]) -> Any:
    def offer(f: Function) -> Function:
        if not callable(f):
            raise TypeError(f"{_WORDS[phase]} belongs above a function, not {f!r}")
        OFFERED.add(phase, name, f)
        return f

    return offer if function is None else offer(function)


def router(function: Optional[Function] = None, *, name: Optional[str] = None) -> Any:
    """Offers a function as a router: it returns the names of the handlers that get the message.

    Use it as @router, or as @router(name="x") to offer the function under another name than its own.
    """
    return _offering(ROUTE, function, name)


def handler(function: Optional[Function] = None, *, name: Optional[str] = None) -> Any:
    """Offers a function as a handler: it returns None, a Send, a Drop, or a list, tuple or generator of Send.

    Use it as @handler, or as @handler(name="x") to offer the function under another name than its own.
    """
    return _offering(HANDLE, function, name)


class Send:
    """One body for one outbound. The body is taken as it is at this moment.

    A str is sent as UTF-8; half a surrogate pair that stands for a byte ("surrogateescape") becomes that byte again.
    """

    __slots__ = ("to", "body")

    def __init__(self, to: str, body: Body) -> None:
        if not isinstance(to, str) or not to:
            raise TypeError(f"Send(to, body): to is the name of an outbound, not {to!r}")
        self.to = to
        self.body = _body_bytes(body)

    def __repr__(self) -> str:
        return f"Send({self.to!r}, <{len(self.body)} bytes>)"


def _body_bytes(body: Any) -> bytes:
    if isinstance(body, str):
        return body.encode("utf-8", "surrogateescape")
    if isinstance(body, (bytes, bytearray, memoryview)) or getattr(body, "_is_message_body", False):
        return bytes(body)
    raise TypeError(f"Send(to, body): body is bytes, str or an HL7 message, not {type(body).__name__}")


class Drop:
    """A handler's other answer: nothing is sent, the message is filtered, for this reason."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise TypeError(f"Drop(reason): reason is a str, not {type(reason).__name__}")
        self.reason = reason

    def __repr__(self) -> str:
        return f"Drop({self.reason!r})"


class Message:
    """One message, as it was received."""

    __slots__ = ("id", "inbound", "type", "control_id", "attempt", "body", "_received", "_hl7", "_tags")

    def __init__(self, request: dict[str, Any]) -> None:
        self.id: int = request["message"]  # the engine's
        self.inbound: str = request["inbound"]  # the connection that it came from
        self.type: str = request["msgtype"]  # MSH-9, or empty
        self.control_id: str = request["control"]  # MSH-10, or empty
        self.attempt: int = request["attempt"]  # 1 for the first
        self.body: bytes = request["body"]
        self._received: str = request["received"]
        self._hl7: Optional[HL7] = None
        self._tags: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Message {self.id} from {self.inbound}: {self.type or 'of no type'}, {len(self.body)} bytes>"

    @property
    def received(self) -> datetime:
        """When the engine received it, in UTC, to the microsecond."""
        from datetime import datetime, timezone

        whole, _, fraction = self._received.rstrip("Z").partition(".")
        at = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        return at.replace(microsecond=int(fraction[:6].ljust(6, "0")))

    @property
    def hl7(self) -> HL7:
        """The body as an HL7 v2 message, parsed once. Setting a path in it leaves body as it was."""
        if self._hl7 is None:
            from .hl7 import HL7

            self._hl7 = HL7(self.body)
        return self._hl7

    def tag(self, **tags: Union[str, int]) -> None:
        """Sets what the message can be found by: msg.tag(mrn="12345")."""
        for name, value in tags.items():
            if not isinstance(value, (str, int)) or isinstance(value, bool):
                raise TypeError(f"the tag {name} is a str or an int, not {type(value).__name__}")
            self._tags[scrub(name)] = scrub(str(value))


class Context:
    """What surrounds one call of a function."""

    __slots__ = ("settings", "deadline", "_name")

    def __init__(self, settings: dict[str, Any], deadline: float, name: str) -> None:
        self.settings = settings  # from the configuration
        self.deadline = deadline  # on the clock of time.monotonic()
        self._name = name

    def remaining(self) -> float:
        """Seconds until the deadline, at which the engine kills this process; 0 when it has passed."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def log(self) -> logging.Logger:
        """A logger that writes to stderr from level INFO on, named for the function. It is for any thread."""
        import logging

        log = logging.getLogger("coppice." + self._name)
        stream = logging.StreamHandler()
        stream.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        stream = _STREAMS.setdefault("stderr", stream)  # two threads that come first at once get the same one
        if stream not in log.handlers:
            log.setLevel(logging.INFO)
            log.propagate = False
            log.addHandler(stream)
        return log


_STREAMS: dict[str, logging.StreamHandler[Any]] = {}
