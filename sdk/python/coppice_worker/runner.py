"""The worker's side of the wire: boot, load, ready, then one answer for each request until the engine closes."""

from __future__ import annotations

import errno
import os
import re
import sys
import time

from . import __version__, faults, loading
from .calling import RESULT, Caller
from .functions import OFFERED, Context, Message
from .violation import Violation
from .wire import VERSION, Caps, decode, encode, read_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Read = Callable[[int], bytes]
    Write = Callable[[bytes], Any]

EXIT_VIOLATION = 70  # the engine broke the protocol
EXIT_NO_ENGINE = 78  # started by something else than an engine
EXIT_LOST = 1  # the engine is gone, or the code cannot be loaded

_WIRE = re.compile(r"(0|[1-9][0-9]{0,18}),(0|[1-9][0-9]{0,18})")
_NOT_STARTED = """\
coppice_worker: this program is started by a Coppice engine, which sets COPPICE_WIRE.
Name your file in coppice.toml (run = "adt.py:admit") and start it with: coppice serve
To call one function of a file by hand:  python3 -m coppice_worker run adt.py:admit MESSAGE"""


def main(args: list[str]) -> int:
    """Runs a worker, or with the argument "run" one function alone. Returns the exit status."""
    if args and args[0] == "run":
        from .alone import main as alone

        return alone(args[1:])
    try:
        wire = Wire.from_environment()
    except (LookupError, ValueError, OSError) as e:
        print(e if isinstance(e, ValueError) else _NOT_STARTED, file=sys.stderr)
        return EXIT_NO_ENGINE
    _text_streams()
    try:
        return serve(wire.read, wire.write)
    except Violation as v:
        print(f"coppice_worker: by the engine: {v}", file=sys.stderr)
        return EXIT_VIOLATION
    except ForkedError:
        _flush()
        os._exit(EXIT_LOST)
    except OSError as e:
        print(f"coppice_worker: the wire to the engine: {e}", file=sys.stderr)
        return EXIT_LOST


class ForkedError(Exception):
    """This process is a forked child that came back from the function that made it."""


class Wire:
    """The two descriptors of the protocol. No process that the user's code starts holds them: a started program
    loses them as it starts, a forked child closes them. Nothing is buffered, so nothing can be flushed twice.

    A child that C code forked runs no hook, and code that closes all descriptors, as daemons do, frees the two numbers
    for the next file that it opens: each use looks whether this is the process and whether that is the pipe."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._fds: Optional[tuple[int, int]] = (read_fd, write_fd)
        self._pid = os.getpid()
        self._pipes = {fd: _identity(fd) for fd in self._fds}
        for fd in self._fds:
            os.set_inheritable(fd, False)
            if os.name != "nt":
                os.set_blocking(fd, True)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._close)

    @classmethod
    def from_environment(cls) -> Wire:
        """Takes COPPICE_WIRE out of the environment. LookupError: it is not there. ValueError: it is nonsense."""
        value = os.environ.pop("COPPICE_WIRE", None)
        if value is None:
            raise LookupError("COPPICE_WIRE")
        found = _WIRE.fullmatch(value)
        if not found:
            raise ValueError("coppice_worker: COPPICE_WIRE is not two numbers with a comma between")
        numbers = int(found[1]), int(found[2])
        try:
            return cls(*(_open_handles(*numbers) if os.name == "nt" else numbers))
        except OSError as e:
            raise ValueError(f"coppice_worker: COPPICE_WIRE names what is not open: {e}") from e

    def _close(self) -> None:
        for fd in self._fds or ():
            os.close(fd)
        self._fds = None

    def _own(self, which: int) -> int:
        """The descriptor to read (0) or write (1), if it is still what it was."""
        if self._fds is None or os.getpid() != self._pid:
            raise ForkedError
        fd = self._fds[which]
        if _identity(fd) != self._pipes[fd]:
            raise OSError(errno.EBADF, f"descriptor {fd} was closed, and is another file now")
        return fd

    def read(self, size: int) -> bytes:
        return os.read(self._own(0), size)

    def write(self, data: bytes) -> None:
        with memoryview(data) as rest:
            at = 0
            while at < len(rest):
                at += os.write(self._own(1), rest[at:])


def _identity(fd: int) -> tuple[int, int, int]:
    """What tells one open file from another that has its number later."""
    found = os.fstat(fd)
    return found.st_mode, found.st_dev, found.st_ino


def _open_handles(read_handle: int, write_handle: int) -> tuple[int, int]:
    import msvcrt

    binary = os.O_BINARY  # type: ignore[attr-defined]
    for handle in (read_handle, write_handle):
        os.set_handle_inheritable(handle, False)  # type: ignore[attr-defined]
    return (
        msvcrt.open_osfhandle(read_handle, os.O_RDONLY | binary),  # type: ignore[attr-defined]
        msvcrt.open_osfhandle(write_handle, os.O_WRONLY | binary),  # type: ignore[attr-defined]
    )


def _text_streams() -> None:
    """stdout and stderr belong to the user; what is printed leaves line by line and never raises."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(  # type: ignore[union-attr]
                encoding="utf-8", errors="backslashreplace", line_buffering=True
            )


def _flush() -> None:
    """What a function printed belongs to its dispatch: it leaves before the answer does."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):  # the user's code closed or replaced it
            pass


def serve(read: Read, write: Write) -> int:
    """Speaks the protocol until the engine closes its end. Returns the exit status."""
    caps = Caps()
    boot = _next(read, caps)
    if boot is None:
        return 0
    if boot["type"] != "boot":
        raise Violation("order", f'a "{boot["type"]}" before boot')
    caps.frame = boot["frame_cap"] or caps.frame
    fault = _load(boot)
    _flush()
    if fault is not None:
        _write(write, encode({"type": "bootfail", "version": VERSION, "error": fault}, caps))
        return EXIT_LOST
    _write(write, encode({"type": "ready", "version": VERSION, "sdk": _sdk(), "offers": loading.offers()}, caps))
    caller = Caller()
    while True:
        request = _next(read, caps)
        if request is None:
            caller.close()
            return 0
        if request["type"] != "request":
            raise Violation("order", f'a second "{request["type"]}"')
        answer = _dispatch(caller, request, boot["settings"])
        _flush()
        _write(write, _encode_answer(request, answer, caps))


def _next(read: Read, caps: Caps) -> Optional[dict[str, Any]]:
    body = read_frame(read, caps)
    return None if body is None else decode(body, "engine", caps)


def _write(write: Write, pieces: list[bytes]) -> None:
    """Up to 64 KiB go out in one write, so that an ordinary message costs one system call."""
    if sum(map(len, pieces)) <= 64 << 10:
        write(b"".join(pieces))
        return
    for piece in pieces:
        write(piece)


def _sdk() -> str:
    return f"coppice_worker/{__version__} {sys.implementation.name}/{'.'.join(map(str, sys.version_info[:3]))}"


def _load(boot: dict[str, Any]) -> Optional[dict[str, str]]:
    if not boot["file"]:
        return faults.plain(loading.OFFER, "boot names no file, and this worker has no code of its own")
    try:
        loading.load(boot["file"])
    except ForkedError:
        raise
    except BaseException as e:  # SystemExit, too: a file that ends the program as it is loaded cannot be booted
        return faults.of(e)
    return loading.missing(boot["file"], boot["offers"])


def _dispatch(caller: Caller, request: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + request["timeout_ms"] / 1000
    phase, name = request["phase"], request["name"]
    function = OFFERED.get(phase, name)
    if function is None:
        return {"type": "fail", "error": faults.plain(loading.OFFER, f'no function "{name}" for phase "{phase}"')}
    return caller.answer(phase, name, function, Message(request), Context(settings, deadline, name))


def _encode_answer(request: dict[str, Any], answer: dict[str, Any], caps: Caps) -> list[bytes]:
    """The frame of an answer; one that does not fit the caps is the message's fault."""
    binding = {"type": answer.pop("type"), "id": request["id"], "phase": request["phase"], "name": request["name"]}
    try:
        return encode({**binding, **answer}, caps)
    except Violation as v:
        error = faults.plain(RESULT, f'the result of "{request["name"]}" is too large: {v.detail}')
        return encode({**binding, "type": "fail", "error": error}, caps)
