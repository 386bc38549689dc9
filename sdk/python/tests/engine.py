"""Plays the engine to a real worker process. Every wait has a deadline."""

import os
import select
import subprocess
import sys
import tempfile
import time

from coppice_worker.wire import Caps, decode, encode, read_frame

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "coppice_worker", "__main__.py")
ID = "5f3a9c0e1b2d4c6f8091a2b3c4d5e6f7"
PATIENCE = 30.0


class Engine:
    """Starts a worker on a file with the given source, and speaks to it."""

    def __init__(self, source, offers=(), settings=None, frame_cap=0, file="adt.py", neighbours=None, boot=True):
        self.folder = tempfile.TemporaryDirectory()
        for name, text in {file: source, **(neighbours or {})}.items():
            with open(os.path.join(self.folder.name, name), "w", encoding="utf-8") as f:
                f.write(text)
        to_worker, self.to = os.pipe()
        self.at, from_worker = os.pipe()
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", PROGRAM],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            pass_fds=(to_worker, from_worker),
            cwd=self.folder.name,
            env={"COPPICE_WIRE": f"{to_worker},{from_worker}", "PATH": os.environ.get("PATH", "")},
        )
        os.close(to_worker)
        os.close(from_worker)
        if boot:
            self.send({
                "type": "boot", "version": 1, "file": os.path.join(self.folder.name, file),
                "offers": [{"phase": phase, "name": name} for phase, name in offers],
                "settings": settings or {}, "frame_cap": frame_cap,
            })  # fmt: skip
            self.booted = self.receive()

    def send(self, message):
        self.write(b"".join(encode(message, Caps())))

    def write(self, data):
        os.write(self.to, data)

    def read(self, n):
        ready, _, _ = select.select([self.at], [], [], PATIENCE)
        if not ready:
            raise TimeoutError("the worker wrote nothing")
        return os.read(self.at, n)

    def receive(self):
        """The worker's next message; None when it closed its end."""
        frame = read_frame(self.read, Caps())
        return None if frame is None else decode(frame, "worker", Caps())

    def request(self, name, body=b"MSH|^~\\&|", phase="handle"):
        self.send({
            "type": "request", "id": ID, "phase": phase, "name": name, "message": 7, "inbound": "adt",
            "msgtype": "ADT^A01", "control": "C1", "received": "2026-01-02T03:04:05.678Z", "attempt": 2,
            "timeout_ms": 60000, "body": body,
        })  # fmt: skip

    def ask(self, name, body=b"MSH|^~\\&|", phase="handle"):
        self.request(name, body, phase)
        return self.receive()

    def hang_up(self):
        if self.to is not None:
            os.close(self.to)
            self.to = None

    def close(self):
        """Ends the worker and returns its exit status."""
        self.hang_up()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.at)
            self.folder.cleanup()

    def printed(self):
        self.output.seek(0)
        return self.output.read().decode("utf-8")


def until(condition):
    """Waits for what no event tells: polls, with a deadline."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)
