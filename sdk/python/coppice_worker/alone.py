"""Calls one function on one file, without an engine: python3 -m coppice_worker run adt.py:admit MESSAGE."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime, timezone

from . import faults, loading
from .calling import Caller
from .functions import HANDLE, OFFERED, ROUTE, Context, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(args: list[str]) -> int:
    """Prints what the function would send. Returns 0, 1 when the function failed, 2 for wrong usage."""
    options = _options(args)
    file, _, name = options.function.rpartition(":")
    try:
        loading.load(file)
        body = sys.stdin.buffer.read() if options.message == "-" else _read(options.message)
    except Exception as e:
        return _failed(faults.of(e))
    phase = HANDLE if OFFERED.get(HANDLE, name) else ROUTE
    function = OFFERED.get(phase, name)
    if function is None:
        return _failed(loading.missing(file, [{"phase": HANDLE, "name": name}]) or {})
    settings = dict(s.partition("=")[::2] for s in options.set)
    context = Context(settings, time.monotonic() + options.timeout, name)
    try:
        answer = Caller().answer(phase, name, function, _message(body), context)
    except SystemExit as e:
        text = f"{name} ended its process with status {e.code!r}; an engine takes that for a crash"
        return _failed({"type": "SystemExit", "text": text, "traceback": ""})
    if "error" in answer:
        return _failed(answer["error"])
    _show(answer)
    return 0


def _options(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="coppice_worker run", description=__doc__)
    parser.add_argument("function", help="FILE:FUNCTION, such as adt.py:admit")
    parser.add_argument("message", help="a file with one message, or - for stdin")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for ctx.settings")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="what ctx.deadline shows")
    options = parser.parse_args(args)
    if not all(options.function.rpartition(":")[::2]):
        parser.error("name a file and its function: adt.py:admit")
    return options


def _read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def _message(body: bytes) -> Message:
    kind = control = ""
    try:
        h = Message({**_NOTHING, "body": body}).hl7
        kind, control = "^".join(filter(None, (h["MSH-9.1"], h["MSH-9.2"]))), h["MSH-10"]  # as the engine tells them
    except ValueError:
        pass  # not HL7: the engine leaves both empty as well
    received = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Message({**_NOTHING, "body": body, "msgtype": kind, "control": control, "received": received})


_NOTHING: dict[str, Any] = {
    "message": 1, "inbound": "alone", "msgtype": "", "control": "", "received": "", "attempt": 1, "body": b"",
}  # fmt: skip


def _failed(fault: dict[str, str]) -> int:
    print(fault["traceback"].rstrip() or f"{fault['type']}: {fault['text']}", file=sys.stderr)
    return 1


def _show(answer: dict[str, Any]) -> None:
    if "handlers" in answer:
        print("handlers:", ", ".join(answer["handlers"]) or "none")
    if "drop" in answer:
        print("drop:", answer["drop"])
    for name, value in answer.get("tags", {}).items():
        print(f"tag: {name}={value}")
    if answer.get("sends") == []:
        print("sends nothing")
    for send in answer.get("sends", []):
        print(f"send to {send['to']}, {len(send['body'])} bytes:")
        text = send["body"].decode("utf-8", "backslashreplace")
        print(text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n"))
