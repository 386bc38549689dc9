"""Reads one header: JSON (RFC 8259), strict, from its start to its end, so that the first fault names the violation.

The json module is not used for reading because it takes the last of two duplicate keys, recurses as deep as its input
says, and lets NaN and halves of surrogate pairs pass: each lets two readers of one frame see two messages.
"""

from __future__ import annotations

import re

from .violation import Violation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_DIGITS = re.compile(r"[0-9]+")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_STARTS = frozenset('"{[-tfn0123456789')

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class Parser:
    """A position in the text of one header."""

    __slots__ = ("text", "at", "depth", "max_depth")

    def __init__(self, text: str, max_depth: int) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.max_depth = max_depth

    def peek(self) -> str:
        """The next character that is not space, without taking it; empty at the end."""
        at = self.at
        c = self.text[at : at + 1]
        if c and c in " \t\n\r":
            at = self.at = _SPACE.match(self.text, at).end()  # type: ignore[union-attr]
            c = self.text[at : at + 1]
        return c

    def take(self, c: str) -> bool:
        if self.peek() != c:
            return False
        self.at += 1
        return True

    def syntax(self, what: str) -> Violation:
        return Violation("json-syntax", f"{what} at character {self.at} of the header")

    def wrong(self, want: str) -> Violation:
        """The fault of a value that is not of the wanted type: of syntax if it is no value at all."""
        if self.peek() in _STARTS:
            return Violation("json-type", f"no {want} at character {self.at} of the header")
        return self.syntax("no value")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > self.max_depth:
            raise Violation("json-depth", f"nested deeper than {self.max_depth}")

    def object(self, field: Callable[[str], None]) -> set[str]:
        """Reads an object and calls field for each key, to read its value. Returns the keys."""
        if not self.take("{"):
            raise self.wrong("object")
        self.enter()
        seen: set[str] = set()
        first = True
        while not self.take("}"):
            if not first and not self.take(","):
                raise self.syntax("no comma")
            first = False
            self.key(seen, field)
        self.depth -= 1
        return seen

    def key(self, seen: set[str], field: Callable[[str], None]) -> None:
        if self.peek() != '"':
            raise self.syntax("no key")
        key = self.string()
        if key in seen:
            raise Violation("json-duplicate", f"a key occurs twice before character {self.at} of the header")
        seen.add(key)
        if not self.take(":"):
            raise self.syntax("no colon")
        field(key)

    def array(self, item: Callable[[], None]) -> None:
        """Reads an array and calls item where each item starts."""
        if not self.take("["):
            raise self.wrong("array")
        self.enter()
        first = True
        while not self.take("]"):
            if not first and not self.take(","):
                raise self.syntax("no comma")
            first = False
            item()
        self.depth -= 1

    def string(self) -> str:
        if not self.take('"'):
            raise self.wrong("string")
        start = self.at
        end = _PLAIN.match(self.text, start).end()  # type: ignore[union-attr]
        if self.text[end : end + 1] == '"':
            self.at = end + 1
            return self.text[start:end]
        parts = [self.text[start:end]]
        self.at = end
        while True:
            c = self.text[self.at : self.at + 1]
            if c == '"':
                self.at += 1
                return "".join(parts)
            if c != "\\":
                raise self.syntax("a control character in a string" if c else "a string without end")
            self.at += 1
            parts.append(self.escape())
            end = _PLAIN.match(self.text, self.at).end()  # type: ignore[union-attr]
            parts.append(self.text[self.at : end])
            self.at = end

    def escape(self) -> str:
        c = self.text[self.at : self.at + 1]
        self.at += 1
        if c != "u":
            try:
                return _ESCAPES[c]
            except KeyError:
                raise self.syntax("an unknown escape" if c else "a string without end") from None
        high = self.hex4()
        if not 0xD800 <= high <= 0xDFFF:
            return chr(high)
        if high <= 0xDBFF and self.text.startswith("\\u", self.at):
            self.at += 2
            low = self.hex4()
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        raise Violation("json-utf8", f"half of a surrogate pair before character {self.at} of the header")

    def hex4(self) -> int:
        found = _HEX4.match(self.text, self.at)
        if not found:
            raise self.syntax("no four hexadecimal digits")
        self.at += 4
        return int(found.group(), 16)

    def digits(self) -> bool:
        found = _DIGITS.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found is not None

    def step(self, among: str) -> bool:
        c = self.text[self.at : self.at + 1]
        if not c or c not in among:
            return False
        self.at += 1
        return True

    def number(self) -> tuple[str, bool]:
        """Takes the text of a number and says whether it is written as a whole one."""
        c = self.peek()
        if not c or c not in "-0123456789":
            raise self.wrong("number")
        start, whole = self.at, True
        self.step("-")
        if not self.step("0") and not self.digits():
            raise self.syntax("no digit")
        if self.step("."):
            whole = False
            if not self.digits():
                raise self.syntax("no digit")
        if self.step("eE"):
            whole = False
            self.step("+-")
            if not self.digits():
                raise self.syntax("no digit")
        return self.text[start : self.at], whole

    def integer(self, low: int, high: int) -> int:
        """Reads a whole number from low to high."""
        text, whole = self.number()
        n = _whole(text) if whole else None
        if n is None or not low <= n <= high:
            raise Violation(
                "json-number", f"no whole number from {low} to {high} before character {self.at} of the header"
            )
        return n

    def value(self) -> Any:
        """Reads any value but null. It keeps a stack of its own: a header cannot make Python's overflow."""
        stack: list[Any] = []
        while True:
            if stack and self.take("}" if isinstance(stack[-1], dict) else "]"):
                self.depth -= 1
                whole = stack.pop()
                if not stack:
                    return whole
                continue
            key = self.next_key(stack[-1]) if stack else ""
            opens = self.peek() in ("{", "[")
            item = self.open() if opens else self.scalar()
            if not stack:
                if not opens:
                    return item
            elif isinstance(stack[-1], dict):
                stack[-1][key] = item
            else:
                stack[-1].append(item)
            if opens:
                stack.append(item)

    def open(self) -> Any:
        item: Any = {} if self.peek() == "{" else []
        self.at += 1
        self.enter()
        return item

    def next_key(self, container: Any) -> str:
        """Moves to the next item of a container and returns its key, empty for an item of a list."""
        if container and not self.take(","):
            raise self.syntax("no comma")
        if not isinstance(container, dict):
            return ""
        if self.peek() != '"':
            raise self.syntax("no key")
        key = self.string()
        if key in container:
            raise Violation("json-duplicate", f"a key occurs twice before character {self.at} of the header")
        if not self.take(":"):
            raise self.syntax("no colon")
        return key

    def scalar(self) -> Any:
        c = self.peek()
        if c == '"':
            return self.string()
        if c in ("t", "f", "n"):
            return self.word()
        text, whole = self.number()
        if whole:
            n = _whole(text)
            if n is None:
                raise Violation("json-number", f"beyond 64 bits before character {self.at} of the header")
            return n
        f = float(text)
        if f in (float("inf"), float("-inf")):
            raise Violation("json-number", f"beyond a double before character {self.at} of the header")
        return f

    def word(self) -> bool:
        for word, meaning in (("true", True), ("false", False)):
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return meaning
        if self.text.startswith("null", self.at):
            raise Violation("json-type", f"null at character {self.at} of the header")
        raise self.syntax("no value")

    def end(self) -> None:
        """Refuses anything behind the header's object but space."""
        if self.peek():
            raise self.syntax("more than one value")


def _whole(text: str) -> Optional[int]:
    """The number, or None if it does not fit 64 bits. Its length is looked at first: int() is quadratic."""
    if len(text) > 20:
        return None
    n = int(text)
    return n if INT64_MIN <= n <= INT64_MAX else None
