"""The errors that autotune raises on purpose, and how they name what was mistyped."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MOST_NAMES = 20
_VALUES = Path(__file__).with_name("trial")  # which refuse what a function gives them


class UserError(ValueError):
    """A mistake of the user's, reported in one line; the command line exits with 2."""


class StudyError(RuntimeError):
    """The study could not go on (cluster, disk, every trial fails); exit code 4, resumable."""


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """One line for a mistyped name: what was given, the nearest right name, what is allowed.

    Of many names only the nearest one is said.
    """
    names = sorted(set(allowed))
    if not names:
        return f"unknown {what} {name!r}: there is none"
    near = _nearest(what, str(name), names)
    hint = f"; did you mean {near!r}?" if near else ""
    if near and len(names) > _MOST_NAMES:
        return f"unknown {what} {name!r}{hint}"
    return f"unknown {what} {name!r}{hint} (allowed: {', '.join(names)})"


def _nearest(what: str, name: str, names: Sequence[str]) -> str:
    """The nearest of the names, whatever its case, or an empty string.

    >>> _nearest("sampler", "TPESampler", ["gp", "tpe"])
    'tpe'
    """
    typed = name.lower()
    bare = typed.removesuffix(what.lower()) or typed  # as in the class names of other libraries
    lower = {known.lower(): known for known in reversed(names)}
    for word in dict.fromkeys((bare, typed)):
        if near := difflib.get_close_matches(word, lower, n=1, cutoff=0.5):
            return lower[near[0]]
    return ""


def canonical(name: str, allowed: Iterable[str]) -> str:
    """The one allowed name that `name` is but for the case of its letters; else `name` itself.

    >>> canonical("TPE", ["tpe", "gp"]), canonical("tpee", ["tpe"]), canonical("A", ["a", "A"])
    ('tpe', 'tpee', 'A')
    """
    names = set(allowed)
    same = [known for known in names if known.lower() == name.lower()]
    return same[0] if name not in names and len(same) == 1 else name


def shown(value: object, most: int = 80) -> str:
    """A value for a message: in one line, whatever its `__repr__` does.

    >>> shown("lr"), shown(10**5000)
    ("'lr'", 'a whole number of 16610 bits (at most 63)')
    """
    if isinstance(value, int) and value.bit_length() > 63:
        return f"a whole number of {value.bit_length()} bits (at most 63)"
    try:
        text = " ".join(repr(value).splitlines())
    except Exception:
        return f"a {type(value).__name__} without a repr"
    return text if len(text) <= most else f"{text[:most]}..."


def text_of(error: BaseException) -> str:
    """The text of an exception, whatever its `__str__` does."""
    try:
        return str(error)
    except Exception as problem:
        return f"(no text: its __str__ raised {type(problem).__name__})"


def raised_by(what: str, error: BaseException) -> str:
    """One line for an error in a function that the user may have written: what it is, and where.

    Args:
        what: the function's part in the study.
        error: what it raised; a `SystemExit` is none of this program's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).parent != _VALUES] or frames
    place = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    text = " ".join(text_of(error).split())
    return f"the {what} raised {type(error).__name__}{place}: {text}"


# --- in scripts -----------------------------------------------------------------------------------


def checked(check: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have what a check of the user's values raises be a `UserError`, which ends a script so.

    For a `__post_init__`: a `ValueError` of it becomes a `UserError` with the same text.
    """

    @wraps(check)
    def called(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return check(*args, **named)
        except ValueError as error:
            end_script_in_one_line()
            mistake = error if isinstance(error, UserError) else UserError(text_of(error))
            # Its line says everything; what checked what does not help.
            raise mistake.with_traceback(None) from error.__cause__

    return called


def end_script_in_one_line() -> None:
    """Have an error of ours that a script does not catch end it as it ends a command.

    That is one line on stderr, and exit code 2 for a `UserError` or 4 for a `StudyError`.
    """
    # Called where such an error leaves `run`, `tune` or the constructor of a value, and not on
    # import, as importing a library must not change how other errors of a script are shown. It
    # takes a hook, as only that leaves the error to `except` in the script, to notebooks and to
    # test runners, none of which call it. Whoever has set a hook (a debugger, a reporter of
    # crashes) keeps it, and a session goes on. Ray's, which it sets when it is imported, only
    # notes the error in a cluster that is gone.
    session = bool(sys.flags.interactive) or hasattr(sys, "ps1")
    before = sys.excepthook
    rays = str(getattr(before, "__module__", "")).startswith("ray.")
    if (before is sys.__excepthook__ or rays) and not session:
        sys.excepthook = partial(_in_one_line, before)


def _in_one_line(
    before: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Print an error of ours and exit; leave any other one to the hook that was there before."""
    if not isinstance(error, UserError | StudyError):
        before(kind, error, trace)
        return
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)
    frames = [(f.f_globals.get("__name__") or "", f, line) for f, line in traceback.walk_tb(trace)]
    calls = [(f, n) for name, f, n in frames if name.partition(".")[0] != __package__]
    place = f" ({calls[-1][0].f_code.co_filename}:{calls[-1][1]})" if calls else ""
    broken = "the study could not go on: " if isinstance(error, StudyError) else ""
    print(f"autotune: {broken}{text_of(error)}{place}", file=sys.stderr, flush=True)
    raise SystemExit(4 if broken else 2)
