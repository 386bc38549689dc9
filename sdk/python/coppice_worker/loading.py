"""Loads a user's file: the first code that is not trusted."""

from __future__ import annotations

import os
import sys

from . import faults
from .functions import HANDLE, OFFERED, ROUTE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

OFFER = "offer"  # the type of a fault: the file lacks a function that the engine asks for
_WORDS = {ROUTE: "@router", HANDLE: "@handler"}


def load(path: str) -> None:
    """Runs a file as a module named by its stem, its folder first on sys.path so that its neighbours import."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    path = os.path.abspath(path)
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:  # json.py, say: to take that name would break whoever imports the other
        name = "_coppice_" + name
    loader = SourceFileLoader(name, path)
    spec = spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"no module can be made of {path}")
    module = module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(path))
    sys.modules[name] = module
    loader.exec_module(module)


def missing(path: str, wanted: Iterable[dict[str, str]]) -> Optional[dict[str, str]]:
    """The fault of a file that lacks a function that the engine asks for, or None."""
    for offer in wanted:
        if OFFERED.get(offer["phase"], offer["name"]) is None:
            return faults.plain(OFFER, _lacks(os.path.basename(path), offer["phase"], offer["name"]))
    return None


def _lacks(file: str, phase: str, name: str) -> str:
    text = f'{file} has no {_WORDS[phase]} "{name}"'
    have = [f'{_WORDS[p]} "{n}"' for p, n in OFFERED]
    if not have:
        return text + "; it offers nothing: put @router or @handler above a function"
    if OFFERED.get(HANDLE if phase == ROUTE else ROUTE, name) is not None:
        text += f'; "{name}" is a {_WORDS[HANDLE if phase == ROUTE else ROUTE]}'
    import difflib

    near = difflib.get_close_matches(name, [n for p, n in OFFERED if p == phase], 1)
    if near:
        text += f'; did you mean "{near[0]}"?'
    return text + "; it offers: " + ", ".join(have)


def offers() -> list[dict[str, Any]]:
    """All that the loaded file offers."""
    return [{"phase": phase, "name": name} for phase, name in OFFERED]
