"""Tells of many streams how this SDK judges each: protocol/differential_test.go holds the three languages against each other.

A record on stdin: the sender (0 engine, 1 worker), the four caps and the stream's length as u32, the stream. A line on stdout: the
violation's name, "end" for a stream that is empty, or "ok".
"""

import io
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from coppice_worker.violation import Violation  # noqa: E402
from coppice_worker.wire import Caps, decode, read_frame  # noqa: E402

RECORD = struct.Struct(">B5I")


def judge(stream, sender, caps):
    try:
        body = read_frame(io.BytesIO(stream).read, caps)
        if body is None:
            return "end"
        decode(body, sender, caps)
    except Violation as v:
        return v.name
    return "ok"


while True:
    head = sys.stdin.buffer.read(RECORD.size)
    if not head:
        break
    side, frame, header, segments, depth, size = RECORD.unpack(head)
    print(judge(sys.stdin.buffer.read(size), ("engine", "worker")[side], Caps(frame, header, segments, depth)))
