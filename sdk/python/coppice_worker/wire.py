"""Frames and the messages in them: what PROTOCOL.md says, nothing else. Every refusal is a Violation.

A message is a dict with the names of its fields on the wire; a body in it is bytes.
"""

from __future__ import annotations

import json
import re

from .strictjson import INT64_MAX, Parser
from .violation import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Read = Callable[[int], bytes]  # up to n bytes; empty at the end of the stream

VERSION = 1
_FIRST_READ = 64 << 10  # a peer that promises 64 MiB and sends nothing costs this much
_ID = re.compile(r"[0-9a-f]{32}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Caps:
    """Bounds what is accepted from a peer and what is sent to one."""

    __slots__ = ("frame", "header", "segments", "depth")

    def __init__(
        self, frame: int = 64 << 20, header: int = 4 << 20, segments: int = 65536, depth: int = 256
    ) -> None:
        self.frame = frame
        self.header = header
        self.segments = segments
        self.depth = depth


def read_frame(read: Read, caps: Caps) -> Optional[bytearray]:
    """Reads one frame, and not a byte more. None means that the stream ended before the frame's first byte."""
    length = _read_exactly(read, 4, between=True)
    if length is None:
        return None
    size = int.from_bytes(length, "big")
    if size > caps.frame:
        raise Violation("frame-cap", f"a frame of {size} bytes, the cap is {caps.frame}")
    if size < 4:
        raise Violation("frame-short", f"a frame of {size} bytes cannot hold a header")
    return _read_exactly(read, size)


def _read_exactly(read: Read, size: int, between: bool = False) -> Optional[bytearray]:
    """Reads size bytes. What is kept grows as they arrive, and is never allocated by the peer's word."""
    got = bytearray()
    while len(got) < size:
        more = read(min(size - len(got), max(_FIRST_READ, len(got))))
        if not more:
            if between and not got:
                return None
            raise Violation("frame-cut", "the stream ended inside a frame")
        got += more
    return got


def split(body: bytes, caps: Caps) -> tuple[bytes, list[tuple[int, int]]]:
    """Takes a frame's body apart: the header, and where each segment starts and ends."""
    if len(body) < 4:
        raise Violation("frame-short", f"a frame of {len(body)} bytes cannot hold a header")
    size = int.from_bytes(body[:4], "big")
    if size > caps.header:
        raise Violation("header-cap", f"a header of {size} bytes, the cap is {caps.header}")
    if size > len(body) - 4:
        raise Violation("header-cut", f"a header of {size} bytes in a frame with {len(body) - 4} left")
    at = 4 + size
    header, segments = body[4:at], []
    while at < len(body):
        if len(segments) == caps.segments:
            raise Violation("segment-count", f"more than {caps.segments} segments")
        left = len(body) - at - 4
        size = int.from_bytes(body[at : at + 4], "big")
        if left < 0 or size > left:
            raise Violation("segment-cut", f"a segment, or its length, in a frame with {left + 4} bytes left")
        segments.append((at + 4, at + 4 + size))
        at += 4 + size
    return header, segments


def decode(body: bytes, sender: str, caps: Caps) -> dict[str, Any]:
    """Reads the body of one frame that the sender ("engine" or "worker") sent."""
    header, segments = split(body, caps)
    try:
        text = header.decode("utf-8", "strict")
    except UnicodeDecodeError:
        raise Violation("json-utf8", "the header is not UTF-8") from None
    return _Decoder(text, body, segments, caps).message(sender)


class _Decoder(Parser):
    """Reads a header by the schema of its type."""

    __slots__ = ("body", "segments", "used")

    def __init__(self, text: str, body: bytes, segments: list[tuple[int, int]], caps: Caps) -> None:
        super().__init__(text, caps.depth)
        self.body = body
        self.segments = segments
        self.used = 0

    def message(self, sender: str) -> dict[str, Any]:
        m: dict[str, Any] = {}

        def field(key: str) -> None:
            if not m:
                if key != "type":
                    raise Violation("type", "the first field of a header is its type")
                m["type"] = self.string()
                if m["type"] not in _SCHEMAS:
                    raise Violation("type", "no message is of this type")
                return
            self.field(m, _SCHEMAS[m["type"]], key)

        self.object(field)
        self.end()
        if not m:
            raise Violation("json-missing", 'no field "type"')
        schema = _SCHEMAS[m["type"]]
        _require(m, schema, _OPTIONAL.get(m["type"], ()))
        if m["type"] == "result":
            _check_form(m)
        if _SENDERS[m["type"]] != sender:
            raise Violation("direction", f'a "{m["type"]}" from the wrong side')
        if self.used != len(self.segments):
            raise Violation("segment-left", f"{len(self.segments) - self.used} segments are not referred to")
        return m

    def field(self, into: dict[str, Any], schema: _Schema, key: str) -> None:
        read = schema.get(key)
        if read is None:
            raise Violation("json-field", f"an unknown field before character {self.at} of the header")
        into[key] = read(self)

    def record(self, schema: _Schema) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.object(lambda key: self.field(found, schema, key))
        _require(found, schema, ())
        return found

    def list_of(self, read: Callable[[_Decoder], Any]) -> list[Any]:
        found: list[Any] = []
        self.array(lambda: found.append(read(self)))
        return found

    def version(self) -> int:
        n = self.integer(0, INT64_MAX)
        if n != VERSION:
            raise Violation("version", f"version {n}, this side speaks {VERSION}")
        return n

    def name(self) -> str:
        s = self.string()
        if not s:
            raise Violation("name", "an empty name")
        return s

    def phase(self) -> str:
        s = self.string()
        if s not in ("route", "handle"):
            raise Violation("phase", "no such phase")
        return s

    def id(self) -> str:
        s = self.string()
        if not _ID.fullmatch(s) or s == "0" * 32:
            raise Violation("id", "no 32 lower-case hexadecimal digits")
        return s

    def settings(self) -> dict[str, Any]:
        if self.peek() != "{":
            raise self.wrong("object")
        return self.value()  # type: ignore[no-any-return]

    def tags(self) -> dict[str, str]:
        found: dict[str, str] = {}

        def field(key: str) -> None:
            found[key] = self.string()

        self.object(field)
        return found

    def segment(self) -> bytes:
        n = self.integer(0, (1 << 32) - 1)
        if n != self.used:
            raise Violation("segment-order", f"segment {n} where {self.used} is next")
        if n >= len(self.segments):
            raise Violation("segment-missing", f"segment {n} of {len(self.segments)}")
        self.used += 1
        start, end = self.segments[n]
        return bytes(memoryview(self.body)[start:end])


def _require(found: dict[str, Any], schema: _Schema, optional: tuple[str, ...]) -> None:
    for key in schema:
        if key not in found and key not in optional:
            raise Violation("json-missing", f'no field "{key}"')


def _check_form(m: dict[str, Any]) -> None:
    """A result is a router's choice, or a handler's work, or its refusal."""
    answers = [key for key in ("handlers", "sends", "drop") if key in m]
    for key in answers:
        if (key == "handlers") != (m["phase"] == "route"):
            raise Violation("form", f'{key} in an answer of phase "{m["phase"]}"')
    if len(answers) != 1:
        raise Violation("form", f"a result has one of handlers, sends and drop, not {len(answers)}")


if TYPE_CHECKING:
    _Schema = dict[str, Callable[[_Decoder], Any]]

_FAULT: _Schema = {"type": Parser.string, "text": Parser.string, "traceback": Parser.string}
_OFFER: _Schema = {"phase": _Decoder.phase, "name": _Decoder.name}
_SEND: _Schema = {"to": _Decoder.name, "body": _Decoder.segment}
_BINDING: _Schema = {"id": _Decoder.id, "phase": _Decoder.phase, "name": _Decoder.name}


def _offers(d: _Decoder) -> list[Any]:
    return d.list_of(lambda d: d.record(_OFFER))


def _fault(d: _Decoder) -> dict[str, Any]:
    return d.record(_FAULT)


_SCHEMAS: dict[str, _Schema] = {
    "boot": {
        "version": _Decoder.version,
        "file": Parser.string,
        "offers": _offers,
        "settings": _Decoder.settings,
        "frame_cap": lambda d: d.integer(0, (1 << 32) - 1),
    },
    "ready": {"version": _Decoder.version, "sdk": Parser.string, "offers": _offers},
    "bootfail": {"version": _Decoder.version, "error": _fault},
    "request": {
        **_BINDING,
        "message": lambda d: d.integer(1, INT64_MAX),
        "inbound": Parser.string,
        "msgtype": Parser.string,
        "control": Parser.string,
        "received": Parser.string,
        "attempt": lambda d: d.integer(1, (1 << 31) - 1),
        "timeout_ms": lambda d: d.integer(0, INT64_MAX),
        "body": _Decoder.segment,
    },
    "result": {
        **_BINDING,
        "handlers": lambda d: d.list_of(_Decoder.name),
        "sends": lambda d: d.list_of(lambda d: d.record(_SEND)),
        "drop": Parser.string,
        "tags": _Decoder.tags,
    },
    "fail": {**_BINDING, "error": _fault},
}
_OPTIONAL = {"result": ("handlers", "sends", "drop", "tags")}
_SENDERS = {
    "boot": "engine",
    "request": "engine",
    "ready": "worker",
    "bootfail": "worker",
    "result": "worker",
    "fail": "worker",
}


def check_binding(request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Refuses an answer that is not to this request. The id is judged first: a late answer has the right phase."""
    for key in ("id", "phase", "name"):
        if request[key] != answer[key]:
            raise Violation(key, "the answer is to another request")


def encode(m: dict[str, Any], caps: Caps) -> list[bytes]:
    """Makes the frame of a message, as pieces to be written one after the other.

    A message that the caps do not allow is refused with the Violation that the reader would find.
    """
    segments: list[bytes] = []
    fields = dict(m)
    if "sends" in fields:
        fields["sends"] = [{"to": s["to"], "body": _refer(s["body"], segments)} for s in fields["sends"]]
    if "body" in fields:
        fields["body"] = _refer(fields["body"], segments)
    header = _utf8(json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    if len(header) > caps.header:
        raise Violation("header-cap", f"a header of {len(header)} bytes, the cap is {caps.header}")
    if len(segments) > caps.segments:
        raise Violation("segment-count", f"{len(segments)} segments, the cap is {caps.segments}")
    size = 4 + len(header) + sum(4 + len(s) for s in segments)
    if size > caps.frame:
        raise Violation("frame-cap", f"a frame of {size} bytes, the cap is {caps.frame}")
    pieces = [size.to_bytes(4, "big"), len(header).to_bytes(4, "big"), header]
    for s in segments:
        pieces += [len(s).to_bytes(4, "big"), s]
    return pieces


def _refer(body: bytes, segments: list[bytes]) -> int:
    segments.append(body)
    return len(segments) - 1


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return scrub(text).encode("utf-8")


def scrub(text: str) -> str:
    """Replaces halves of surrogate pairs, which no header may hold: a header is text, bodies travel as segments."""
    return _SURROGATE.sub("\ufffd", text)
