"""Calls one function of the user's and makes its answer, whatever it returns or raises."""

from __future__ import annotations

import types

from . import faults
from .functions import HANDLE, Context, Drop, Message, Send

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any, Optional

    from .functions import Function

RESULT = "result"  # the type of a fault: the function returned what no result can say


class BadResult(Exception):
    """The function returned what no result can say; the text tells the user what it may return."""


class Caller:
    """Calls functions. Async ones share one event loop, so that what they keep between messages stays usable."""

    def __init__(self) -> None:
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    def answer(self, phase: str, name: str, function: Function, msg: Message, ctx: Context) -> dict[str, Any]:
        """The fields of a result, or of a fail. SystemExit and KeyboardInterrupt pass: they end the worker."""
        try:
            value = self._settle(function(msg, ctx))
            fields = _sends(name, value) if phase == HANDLE else _handlers(name, value)
        except BadResult as e:
            return {"type": "fail", "error": faults.plain(RESULT, str(e))}
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as e:
            return {"type": "fail", "error": faults.of(e)}
        if msg._tags:
            fields["tags"] = msg._tags
        return {"type": "result", **fields}

    def close(self) -> None:
        """Closes the event loop. Not for a forked child: it shares the loop's epoll with its parent."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _settle(self, value: Any) -> Any:
        """Runs what a function only began: a coroutine, a generator."""
        if isinstance(value, (types.GeneratorType, map, filter)):
            return list(value)
        if isinstance(value, types.AsyncGeneratorType):
            return self._run(_collect(value))
        if hasattr(value, "__await__"):
            return self._run(_await(value))
        return value

    def _run(self, coroutine: Any) -> Any:
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(coroutine)


async def _await(value: Any) -> Any:
    return await value


async def _collect(items: Any) -> list[Any]:
    return [item async for item in items]


def _sends(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Drop):
        return {"drop": value.reason}
    if value is None:
        value = []
    elif isinstance(value, Send):
        value = [value]
    elif not isinstance(value, (list, tuple)):
        raise BadResult(
            f'handler "{name}" returned {_kind(value)}; it may return None, Send(...), Drop(...), '
            "or a list, tuple or generator of Send"
        )
    for i, item in enumerate(value):
        if isinstance(item, Drop):
            raise BadResult(f'handler "{name}" returned a list with a Drop in it; return Drop(...) alone')
        if not isinstance(item, Send):
            raise BadResult(f'handler "{name}" returned a list whose item {i} is {_kind(item)}, not a Send')
    return {"sends": [{"to": s.to, "body": s.body} for s in value]}


def _handlers(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        value = []
    elif isinstance(value, str):
        value = [value]
    elif not isinstance(value, (list, tuple)):
        raise BadResult(
            f'router "{name}" returned {_kind(value)}; it may return None, the name of a handler, '
            "or a list, tuple or generator of names"
        )
    for i, item in enumerate(value):
        if not isinstance(item, str) or not item:
            shown = "an empty string" if item == "" else _kind(item)
            raise BadResult(f'router "{name}" returned a list whose item {i} is {shown}, not the name of a handler')
    return {"handlers": [str(item) for item in value]}


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
