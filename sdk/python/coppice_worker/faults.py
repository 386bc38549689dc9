"""Exceptions in the terms of the wire: type, text and traceback, capped."""

from __future__ import annotations

import os

from .wire import scrub

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Optional

TEXT_CAP = 64 << 10  # bytes of each text of a fault
_CUT = "[... cut ...]"
_HERE = os.path.dirname(os.path.abspath(__file__))
_CALLERS = {os.path.join(_HERE, name + ".py") for name in ("alone", "calling", "loading", "runner")}


def plain(kind: str, text: str) -> dict[str, str]:
    """A fault that no exception stands behind."""
    return {"type": kind, "text": head(text), "traceback": ""}


def of(e: BaseException) -> dict[str, str]:
    """The fault of an exception. It does not raise, whatever the exception's own methods do."""
    kind = type(e)
    module = getattr(kind, "__module__", "")
    name = kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
    try:
        text = str(e)
    except BaseException as inner:
        text = f"<str() of it raised {type(inner).__name__}>"
    try:
        trace = _traceback(e)
    except BaseException as inner:
        trace = f"<formatting the traceback raised {type(inner).__name__}>"
    return {"type": head(name), "text": head(text), "traceback": tail(trace)}


def _traceback(e: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(type(e), e, _users(e.__traceback__)))


def _users(tb: Optional[TracebackType]) -> Optional[TracebackType]:
    """The traceback from the first frame of the user's on: behind the last of the callers, and of the importer."""
    found, behind = tb, False
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        ours = file in _CALLERS or (file.startswith("<frozen importlib") and not behind)
        behind = behind or not ours
        tb = tb.tb_next
        if ours:
            found, behind = tb, False
    return found


def head(text: str) -> str:
    """The start of a text, within the cap."""
    raw = scrub(text[: TEXT_CAP + 1]).encode("utf-8")
    if len(raw) <= TEXT_CAP:
        return raw.decode("utf-8")
    return raw[: TEXT_CAP - len(_CUT)].decode("utf-8", "ignore") + _CUT


def tail(text: str) -> str:
    """The end of a text, within the cap: the most recent call stands last."""
    raw = scrub(text[-TEXT_CAP - 1 :]).encode("utf-8")
    if len(raw) <= TEXT_CAP:
        return raw.decode("utf-8")
    return _CUT + raw[-(TEXT_CAP - len(_CUT)) :].decode("utf-8", "ignore")
