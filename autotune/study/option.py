"""What is said of one option of a study: its rule, its flag, its key in the manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autotune.algorithms.specs import canonical_spec
from autotune.trial.checks import LONGEST_SECONDS, is_finite, is_whole

OFF = "off"
_OFF_WORDS = (OFF, "none", "no", "false", "0")
_NEARLY = 0.75  # similarity of two words from which on one is taken for the other
SETTINGS = "option"  # the key of an option's settings in its field's metadata


@dataclass(frozen=True)
class Rule:
    """What an option's value must be, in words and as a check; a default None always passes."""

    text: str
    allows: Callable[[Any], bool]


@dataclass(frozen=True)
class Flag:
    """How an option is spelled on the command line.

    `group` says which commands take it: `search` and `tracking` are those of `run`, `confirm` of
    `confirm`, and `place` of all commands that train.
    """

    name: str
    group: str
    help: str
    metavar: str | None = None  # None for a flag without a value
    parse: Callable[[str], Any] = str  # a ValueError says what the text must be
    repeated: bool = False  # whether it may be given again, each time with one item of a mapping
    several: bool = False  # or each time with one item of a list


@dataclass(frozen=True)
class Option:
    """An option's name and default, its rule, its flag, and its key in the manifest (or none).

    `meant` makes of a value that was given the one that it stands for. `as_json` makes what the
    manifest says of the value, and `unsaid` is the value where an older manifest lacks the key.
    """

    name: str
    default: Any
    rule: Rule | None = None
    flag: Flag | None = None
    key: str | None = None
    meant: Callable[[Any], Any] = lambda value: value
    as_json: Callable[[Any], Any] = lambda value: value
    unsaid: Any = None


def option(default: Any, *, kept: bool | str = False, **settings: Any) -> Any:
    """A field of `StudyOptions`; `kept` in the manifest under its own name, or under that one."""
    return field(default=default, metadata={SETTINGS: {"kept": kept, **settings}})


def whole(least: int) -> Rule:
    return Rule(f"a whole number >= {least}", lambda value: is_whole(value, least))


def _is_amount(value: Any) -> bool:
    """Whether it is a number of cores or GPUs; Ray counts them to four decimals."""
    return is_finite(value) and value >= 1e-4 and (value <= 1 or value == int(value))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _is_seconds(value: Any) -> bool:
    return is_finite(value) and 0 < value <= LONGEST_SECONDS


def _are_seeds(value: Any) -> bool:
    return isinstance(value, Sequence) and all(is_whole(seed, 0) for seed in value)


def _are_texts(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(isinstance(text, str) for item in value.items() for text in item)


def _is_sampler(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "ask") or hasattr(value, "sample_relative")


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and str(value) != ""


def _are_paths(value: Any) -> bool:
    return _is_path(value) or (
        isinstance(value, tuple) and bool(value) and all(map(_is_path, value))
    )


SECONDS = Rule("more than 0 seconds (at most 1e9)", _is_seconds)
CPUS = Rule("a number of cores, whole or a fraction below 1,", _is_amount)
GPUS = Rule(
    "0 or a number of GPUs, whole or a fraction below 1,",
    lambda value: _is_amount(value) or (value == 0 and value is not False),
)
SHARE = Rule("a share, at least 0 and below 1,", _is_share)
YES_OR_NO = Rule("True or False", lambda value: isinstance(value, bool))
TEXT = Rule("text", lambda value: isinstance(value, str))
PATH = Rule("a path", _is_path)
PATHS = Rule("a path or a list of paths", _are_paths)
FOLDER_OR_OFF = Rule("a folder or off", _is_path)
NAMED = Rule("a name or a function", lambda value: isinstance(value, str) or callable(value))
SAMPLER = Rule("a name or a sampler", _is_sampler)
FUNCTION = Rule("a function", callable)
TEXTS = Rule("a dict of texts", _are_texts)
SEEDS = Rule("whole numbers >= 0", _are_seeds)
POOL = Rule("a pool", lambda value: hasattr(value, "start") and hasattr(value, "realtime"))


BACKENDS = ("auto", "ray", "local")
BACKEND = Rule(
    f"one of {', '.join(BACKENDS)}, or a pool,",
    lambda value: value in BACKENDS if isinstance(value, str) else POOL.allows(value),
)


AUTO_OR_OFF_NAMES = ("auto", OFF)
AUTO_OR_OFF = Rule("auto or off", lambda value: value in AUTO_OR_OFF_NAMES)


def auto_or_off(value: Any) -> Any:
    """`auto` or `off`, in any case; `none` is `off`."""
    if not isinstance(value, str):
        return value
    name = value.strip().lower()
    return OFF if name == "none" else name


def named(names: Collection[str]) -> Callable[[Any], Any]:
    """What a part means that may be one of `names`, in any case."""
    return lambda part: canonical_spec(part, names) if isinstance(part, str) else part


def name_of(part: Any) -> str | None:
    """What a manifest says of a sampler, pruner or controller."""
    if part is None or isinstance(part, str):
        return part
    return f"<{getattr(part, '__qualname__', type(part).__qualname__)}>"


def one_or_tuple(value: Any) -> Any:
    """A list as a tuple; its one item where it has no more."""
    if isinstance(value, list | tuple):
        return value[0] if len(value) == 1 else tuple(value)
    return value


def absolute(path: str | Path | Sequence[str | Path] | None) -> str | list[str] | None:
    """What a manifest says of one path, or of several."""
    if path is None:
        return None
    if isinstance(path, str | os.PathLike):
        return str(Path(path).absolute())
    return [str(Path(one).absolute()) for one in path]


def folder_or_off(value: Any) -> Any:
    """The folder, whose `~` is the user's own, or `off` however that is written.

    Raises:
        ValueError: it is no folder, and nearly `off`.
    """
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _OFF_WORDS:
        return OFF
    if get_close_matches(word, [OFF], cutoff=_NEARLY) and not os.path.exists(value):
        meant = f"did you mean {OFF!r}? (./{value} is a folder of that name)"
        raise ValueError(f"must be a folder or off but got {value!r}; {meant}")
    return os.path.expanduser(value) if isinstance(value, str | os.PathLike) else value


def stored_folder_or_off(value: str | Path | None) -> str | list[str] | None:
    """What a manifest says of a folder that may be `off`."""
    return OFF if value == OFF else absolute(value)
