"""HL7 v2 messages, lossless: bytes that are not set stay as they were.

    h = HL7(body)
    h["MSH-9.2"]              "A01"
    h["PID-3.1"]              component 1 of the first repetition of PID-3
    h["PID-3[2].4.1"]         repetition 2, component 4, subcomponent 1
    h["OBX[3]-5"]             the whole of field 5 in the third OBX
    h["PV1-3.4"] = "MERCY"    fields and components that are not there yet are added, empty
    bytes(h)

What is not there reads as "", and setting that to "" changes nothing. All counts start at 1, and MSH-1 is the separator
itself. Values are as they stand in the message, escape sequences included: escape and unescape turn text into such
values and back. A message is read as UTF-8, or as Latin-1 where MSH-18 says 8859/1; bytes that are not UTF-8 become
halves of surrogate pairs ("surrogateescape") and are the same bytes again when they are written.

Package worker/hl7 is the same in Go, sdk/node/hl7.js in JavaScript; protocol/hl7/cases.json holds what all three do.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_LEAD = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_NAME = re.compile(rb"[A-Z0-9]{3}")  # the segments that a path can name
_NO_SEPARATOR = re.compile(rb"[\x00-\x20\x7f0-9A-Za-z]")  # "MSHA" is a word and no header
_HEADERS = (b"MSH", b"FHS", b"BHS")
_PATH = re.compile(
    r"([A-Za-z0-9]{3})(?:\[([1-9][0-9]{0,5})\])?"
    r"-([1-9][0-9]{0,5})(?:\[([1-9][0-9]{0,5})\])?(?:\.([1-9][0-9]{0,5})(?:\.([1-9][0-9]{0,5}))?)?"
)
_ENDS = re.compile(rb"(\r\n|\r|\n)")


class NotHL7(ValueError):
    """The bytes do not start with a header segment."""


class HL7:
    """One message, or one batch, that is changed in place."""

    _is_message_body = True  # Send takes it

    def __init__(self, body: bytes) -> None:
        body = bytes(body)
        start = _LEAD.match(body).end()  # type: ignore[union-attr]
        self._lead = body[:start]
        self._parts = _ENDS.split(body[start:])  # segments, and between them what ends each
        head = self._parts[0]
        if head[:3] not in _HEADERS or len(head) < 4 or _NO_SEPARATOR.match(head, 3):
            raise NotHL7("the body is not HL7 v2: it does not start with MSH, BHS or FHS and a field separator")
        self._field = head[3:4]
        given = head[4:].split(self._field, 1)[0]
        self._component, self._repetition, self._escape, self._sub = (
            b"" if given[i : i + 1] in given[:i] else given[i : i + 1] for i in range(4)
        )  # "^~\\\\&" has been seen: no character means two things
        self._index = self._indexed()
        self._charset = "utf-8"
        if self["MSH-18[1]"] == "8859/1":
            self._charset = "latin-1"

    def _indexed(self) -> dict[str, list[int]]:
        """Where the segments are that a path can name, by name: no name is ever changed."""
        index: dict[str, list[int]] = {}
        for at in range(0, len(self._parts), 2):
            name = self._parts[at].split(self._field, 1)[0]
            if _NAME.fullmatch(name):
                index.setdefault(name.decode("ascii"), []).append(at)
        return index

    def __bytes__(self) -> bytes:
        return self._lead + b"".join(self._parts)

    def __repr__(self) -> str:
        return f"<HL7 {self.get('MSH-9')}, {len(self._parts) // 2 + 1} segments>"

    def __contains__(self, segment: str) -> bool:
        return self.count(segment) > 0

    def count(self, segment: str) -> int:
        """How many segments of this name there are."""
        return len(self._index.get(segment.upper(), ()))

    def get(self, path: str, default: str = "") -> str:
        """The value at a path, or default where it is absent or empty."""
        return self[path] or default

    def __getitem__(self, path: str) -> str:
        p = _Path(path)
        at = self._find(p)
        return "" if at is None else self._decode(self._read(self._parts[at], p))

    def __setitem__(self, path: str, value: str) -> None:
        p = _Path(path)
        if p.header and p.field <= 2:
            raise ValueError(f"{path}: the separators of a message are not changed")
        new = self._encode(value, path)
        self._refuse_separators(p, path, new)
        at = self._find(p)
        if not new and (at is None or not self._read(self._parts[at], p)):
            return  # what is not there is not made to be empty
        if at is None:
            raise KeyError(f"{path}: the message has no such segment")
        self._parts[at] = self._write(self._parts[at], p, new)

    def escape(self, text: str) -> str:
        """Text with its separators as escape sequences, so that it can be set anywhere."""
        e = self._decode(self._escape)
        if not e:
            return text
        names = {e: "E", **{self._decode(c): n for c, n in self._named() if c}}
        return "".join(f"{e}{names[c]}{e}" if c in names else c for c in text)

    def unescape(self, value: str) -> str:
        """A value with the escape sequences of its separators resolved; others stay as they are."""
        e = self._decode(self._escape)
        if not e:
            return value
        chars = {"E": e, **{n: self._decode(c) for c, n in self._named() if c}}
        return re.sub(
            re.escape(e) + "([A-Z])" + re.escape(e), lambda m: chars.get(m[1], m[0]), value
        )

    def _named(self) -> tuple[tuple[bytes, str], ...]:
        return (self._field, "F"), (self._component, "S"), (self._repetition, "R"), (self._sub, "T")

    def _decode(self, raw: bytes) -> str:
        return raw.decode(self._charset, "surrogateescape")

    def _encode(self, value: str, path: str) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"{path}: a value is a str, not {type(value).__name__}")
        try:
            return value.encode(self._charset, "surrogateescape")
        except UnicodeEncodeError as e:
            raise ValueError(f"{path}: {value[e.start]!r} is not in {self._charset}, the message's character set") from None

    def _find(self, p: _Path) -> Optional[int]:
        found = self._index.get(p.segment, ())
        return found[p.occurrence - 1] if p.occurrence <= len(found) else None

    def _levels(self, p: _Path) -> list[tuple[bytes, int]]:
        """The separators to split by on the way to a path, each with the index to take."""
        levels = [(self._field, p.field - 1 if p.header else p.field)]
        if p.header and p.field <= 2:  # the separators themselves
            return levels
        if p.repetition is not None or p.component is not None:
            levels.append((self._repetition, (p.repetition or 1) - 1))
        if p.component is not None:
            levels.append((self._component, p.component - 1))
        if p.sub is not None:
            levels.append((self._sub, p.sub - 1))
        return levels

    def _read(self, raw: bytes, p: _Path) -> bytes:
        if p.header and p.field == 1:
            return self._field
        for separator, index in self._levels(p):
            parts = raw.split(separator, index + 1) if separator else [raw]  # what follows stays in one piece
            if index >= len(parts):
                return b""
            raw = parts[index]
        return raw

    def _write(self, raw: bytes, p: _Path, new: bytes) -> bytes:
        trail = []
        for separator, index in self._levels(p):
            parts = raw.split(separator, index + 1) if separator else [raw]  # what follows stays in one piece
            if index >= len(parts):
                if not separator:
                    raise ValueError("the message declares no separator for it")
                parts += [b""] * (index + 1 - len(parts))
            trail.append((separator, index, parts))
            raw = parts[index]
        for separator, index, parts in reversed(trail):
            parts[index] = new
            new = separator.join(parts)
        return new

    def _refuse_separators(self, p: _Path, path: str, new: bytes) -> None:
        """A value must not hold what would end it: the separators of its own level and of those above."""
        for end in (b"\r", b"\n", *(separator for separator, _ in self._levels(p))):
            if end and end in new:
                raise ValueError(f"{path}: the value holds {end.decode('latin-1')!r}, which ends it; use escape()")


class _Path:
    __slots__ = ("segment", "occurrence", "field", "repetition", "component", "sub", "header")

    def __init__(self, path: str) -> None:
        found = _PATH.fullmatch(path) if isinstance(path, str) else None
        if not found:
            raise ValueError(f"{path!r} is no path: write PID-3, PID-3.1, PID-3[2].4.1 or OBX[3]-5")
        numbers = [None if n is None else int(n) for n in found.groups()[1:]]
        self.segment = found[1].upper()
        self.occurrence = numbers[0] or 1
        self.field = numbers[1] or 1
        self.repetition, self.component, self.sub = numbers[2:]
        self.header = self.segment.encode() in _HEADERS  # its first field is the separator
