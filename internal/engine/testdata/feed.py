"""Handlers of the engine's tests: one that passes everything on, and one for each way to go wrong."""

import os
import signal
import sys
import time

from coppice_worker import Drop, Send, handler, router


@router
def route(msg, ctx):
    return ["through"]


@handler
def through(msg, ctx):
    return [Send("emr", msg.body), Send("archive", msg.body)]


@handler
def numbered(msg, ctx):
    """Adds the engine's id, so that a repeat of one delivery can be told from a message that was sent twice."""
    return Send("emr", msg.body + b"ZID|%d\r" % msg.id)


@router
def route_trouble(msg, ctx):
    what = msg.hl7["ZZZ-1"]
    if what == "route raises":
        raise LookupError("no table")
    if what == "route nowhere":
        return []
    if what == "route unknown":
        return ["nobody"]
    return ["trouble"]


@handler
def trouble(msg, ctx):
    what = msg.hl7["ZZZ-1"]
    if what == "prints":
        print("to stdout", b"\x00\x1b[31m")
        os.write(1, b"\x00\xffraw\n")
        print("to stderr", file=sys.stderr)
    elif what == "raises":
        raise ValueError("bad PID")
    elif what == "nonsense":
        return 42
    elif what == "unknown destination":
        return [Send("emr", msg.body), Send("elsewhere", msg.body)]
    elif what == "sleeps":
        time.sleep(60)
    elif what == "exits":
        sys.exit(3)
    elif what == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "drops":
        return Drop("not for us")
    elif what == "nothing":
        return None
    elif what == "writes to the wire":
        os.write(4, b"hello, engine, this is no frame at all")
        time.sleep(60)
    return Send("emr", msg.body)
