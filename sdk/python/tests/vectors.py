"""Reads protocol/vectors, from the checkout that this folder is part of."""

import io
import json
import os

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "protocol", "vectors")


def load(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return json.load(f)


def stream(pieces):
    """The bytes of a vector's hex: one string, or a list of strings and repetitions."""
    if isinstance(pieces, str):
        return bytes.fromhex(pieces)
    return b"".join(
        bytes.fromhex(p) if isinstance(p, str) else bytes.fromhex(p["repeat"]) * p["times"] for p in pieces
    )


def reader(data):
    return io.BytesIO(data).read


def message(canonical):
    """The message that a vector describes: its bodies are hex."""
    m = dict(canonical)
    if "body" in m:
        m["body"] = stream(m["body"])
    if "sends" in m:
        m["sends"] = [{"to": s["to"], "body": stream(s["body"])} for s in m["sends"]]
    return m
