"""The arguments of each command: rows for argparse (a test fixes the names).

The rows of a study's options are made of `study.options`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from autotune.study.flags import number, whole_number
from autotune.study.option import Option
from autotune.study.options import options

ACTIONS = ("list", "add", "remove", "export")  # of `autotune experience`
Row = tuple[str, dict[str, Any]]  # the words of an argument, and how argparse is to read it
_T = TypeVar("_T")


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse`, whose ValueError becomes argparse's message word by word."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _row(option: Option, **changed: Any) -> Row:
    """An option's row; `changed` is what another command says of it."""
    flag = option.flag
    assert flag is not None, "an option of the command line"
    if flag.metavar is None:
        return flag.name, {"action": "store_true", "dest": option.name, "help": flag.help}
    made = {"metavar": flag.metavar, "dest": option.name, "help": flag.help}
    if flag.repeated or flag.several:
        made["action"] = "append"
    parse = _checked(path if flag.parse is Path else flag.parse)
    default = None if flag.group == "place" else option.default  # as the study has it
    return flag.name, {**made, "default": default, "type": parse, **changed}


def _rows(group: str) -> list[Row]:
    return [_row(option) for option in options() if option.flag and option.flag.group == group]


def _again(name: str, default: Any, help_: str) -> Row:
    """The row of an option for a command with another default."""
    option = next(option for option in options() if option.name == name)
    return _row(option, default=default, help=help_)


def filled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an argument that takes no empty text, and no path that cannot be one."""
    if settings.get("action") in ("store_true", "store_const"):
        return dict(settings)
    parse = settings.get("type", str)

    @functools.wraps(parse)  # argparse shows its name
    def parsed(text: str) -> Any:
        if not text.strip():
            raise argparse.ArgumentTypeError("must not be empty")
        return parse(text)

    return {**settings, "type": parsed}


def path(text: str) -> Path:
    """A path that was typed.

    Raises:
        ValueError: there can be none like it.
    """
    made = Path(text)
    try:
        made.exists()
    except PermissionError:  # on the nodes of a cluster it may be another's
        return made
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{text!r:.80} cannot be a path here: {reason}") from None
    return made


def source(text: str) -> str:
    """A source to compare that was typed, which may be a path.

    Raises:
        ValueError: it cannot be looked for.
    """
    path(text)
    return text


_count = _checked(whole_number)
_path = _checked(path)
_source = _checked(source)
FOLDER: Row = ("folder", {"metavar": "DIR", "type": _path, "help": "a study folder"})
JSON: Row = ("--json", {"action": "store_true", "help": "print one JSON document on stdout"})
REGISTER: Row = ("--register", {"metavar": "NAME", "help": "make the best trial's model a version "
                                "of this registered model of MLflow's"})  # fmt: skip
PLACE = tuple(o.name for o in options() if o.flag is not None and o.flag.group == "place")
LOCAL: Row = ("--local", {"action": "store_const", "const": "local", "dest": "backend",
                          "help": "the same as --backend local"})  # fmt: skip
WHERE: list[Row] = [*_rows("place"), LOCAL, JSON]
RUN: list[Row] = [
    ("recipe", {"metavar": "RECIPE", "help": "module:function or file.py:function"}),
    *(*_rows("search"), REGISTER, *_rows("tracking"), *WHERE),
]
TRY: list[Row] = [
    ("recipe", {"metavar": "RECIPE", "help": "module:function or file.py:function"}),
    next(row for row in _rows("search") if row[0] == "--with"),
    _again("trials", 20, "trials of the study whose duration is estimated (20)"),
    *(
        _again(name, None, help_)
        for name, help_ in (
            ("workers", "ranks of one trial; one is tried (as the recipe says)"),
            ("cpus_per_worker", "CPU cores of a rank (as the recipe says)"),
            ("gpus_per_worker", "GPUs of a rank, 0 for none (as the recipe says)"),
            ("max_concurrent_trials", "trials at once in that study (as many as fit)"),
        )
    ),
    _again("seed", 0, "the study's seed (0)"),
    ("--pdb", {"action": "store_true", "help": "open Python's debugger where the trainer raises"}),
    JSON,
]
RESUME: list[Row] = [
    ("folder", {"metavar": "DIR", "type": _path, "help": "a study folder; with "
                "--from-mlflow the study's name"}),
    _again("trials", None, "a new total number of trials"),
    ("--from-mlflow", {"metavar": "URI", "help": "the MLflow server with the study's copy "
                       "(run --mirror), which is fetched first"}),
    _again("out", None, "the folder to fetch the study into (studies/NAME)"),
    REGISTER,
    *WHERE,
]  # fmt: skip
CONFIRM: list[Row] = [
    FOLDER,
    _again("repeats", 5, "total number of repeats of each configuration (5)"),
    *_rows("confirm"),
    *WHERE,
]
EXPORT: list[Row] = [
    FOLDER,
    ("--to", {"metavar": "OUT", "type": _path, "help": "write one trial to this new folder"}),
    ("--trial", {"metavar": "N", "type": _count, "help": "the trial to write (the best)"}),
    ("--optuna", {"metavar": "URL", "help": "write all trials as an Optuna study to "
                  "sqlite:///FILE.db, for optuna-dashboard"}),
]  # fmt: skip
LIST: list[Row] = [
    ("folder", {"metavar": "DIR", "nargs": "?", "type": _path, "default": Path("studies"),
                "help": "a folder of studies (studies)"}),
    JSON,
]  # fmt: skip
TRIALS: list[Row] = [
    FOLDER,
    ("--csv", {"action": "store_true", "help": "print all columns as CSV on stdout"}),
    JSON,
]
REPLAY: list[Row] = [
    ("export", {"metavar": "OUT", "type": _path, "help": "a folder written by export --to OUT"}),
    _again("repeats", 3, "total number of repeats (3)"),
    _again("out", None, "the study folder (studies/NAME-replay-TRIAL)"),
    *WHERE,
]  # fmt: skip
COMPARE: list[Row] = [
    ("sources", {"metavar": "SOURCE", "nargs": "+", "type": _source,
                 "help": "DIR, DIR#TRIAL, FILE.tsv or mlflow:EXPERIMENT/RUN"}),
    ("--baseline", {"metavar": "SOURCE", "type": _source, "help": "a source, or trial:N of the "
                    "first study (the first source's own baseline)"}),
    ("--allow", {"metavar": "CONDITION", "action": "append", "default": [], "help": "compare "
                 "runs that differ in CONDITION: hardware, workers, sharing, clock or target"}),
    ("--target", {"metavar": "METRIC=VALUE", "help": "the target of published runs and of "
                  "MLflow runs that are not autotune's (top5=93)"}),
    ("--report", {"metavar": "FILE.html", "type": _path, "help": "write an HTML report"}),
    ("--csv", {"metavar": "FILE", "type": _path, "help": "write the table as CSV"}),
    ("--tracking-uri", {"metavar": "URI", "help": "MLflow's store (MLFLOW_TRACKING_URI)"}),
    JSON,
]  # fmt: skip
SCALE: list[Row] = [
    FOLDER,
    ("--workers", {"metavar": "N", "nargs": "+", "type": _count, "help": "numbers of workers (the "
                   "study's, and 2 and 4 times as many)"}),
    ("--also", {"metavar": "DIR", "nargs": "+", "default": [], "type": _path, "help": "studies of "
                "the same recipe on other numbers of workers, as far as they have trained"}),
    JSON,
]  # fmt: skip
REPORT: list[Row] = [
    FOLDER,
    ("--to", {"metavar": "FILE", "type": _path, "help": "the file to write (DIR/report.html)"}),
]
UI: list[Row] = [
    ("folder", {"metavar": "DIR", "type": _path, "help": "a study folder, or a folder of them"}),
    ("--host", {"metavar": "HOST", "help": "where the page of all studies listens (127.0.0.1)"}),
    ("--port", {"metavar": "N", "type": _count, "help": "its port (8500, or a free one)"}),
]
EXPERIENCE: list[Row] = [
    ("action", {"metavar": "ACTION", "help": "list, add, remove or export"}),
    ("names", {"metavar": "DIR|FILE|NAME", "nargs": "*", "default": [], "help": "what to add: "
               "studies, folders of studies, exported files, or with --mlflow names of studies "
               "there (all); what to remove: names of studies; where to export to, and the names "
               "of the studies (all)"}),
    ("--mlflow", {"metavar": "URI", "help": "add the finished studies of this MLflow store"}),
    next(row for row in _rows("search") if row[0] == "--experience"),
    JSON,
]  # fmt: skip
TRAIN_POLICY: list[Row] = [
    ("--data", {"metavar": "FILE", "nargs": "+", "type": _path, "default": [],
                "help": "recorded learning curves: LCBench's form (.npz) or TaskSet's (.json.gz)"}),
    ("--experience", {"metavar": "DIR", "dest": "experience_folder",
                      "help": "a folder of summaries of studies, to train on these alone, or off "
                      "(the usual folder, and what came with autotune)"}),
    ("--out", {"metavar": "FILE", "dest": "weights", "type": _path, "required": True,
               "help": "the file of the weights to write (.npz)"}),
    ("--minutes", {"metavar": "N", "type": _checked(number),
                   "help": "processor time to train (10, unless --studies is given)"}),
    ("--studies", {"metavar": "N", "type": _count,
                   "help": "how many studies to simulate: then the same seed gives the same file "
                           "(on processors of one kind)"}),
    ("--seed", {"metavar": "N", "type": _count, "default": 0, "dest": "training_seed",
                "help": "of everything that is drawn (0)"}),
]  # fmt: skip
ADDRESS: Row = ("--address", {"metavar": "URL", "help": "the dashboard of a Ray cluster, like "
                          "http://HEAD:8265 (RAY_API_SERVER_ADDRESS, RAY_ADDRESS)"})  # fmt: skip
_JOB: Row = ("job", {"metavar": "ID", "help": "a job's id, as `autotune jobs` shows it"})
_FOLLOW: Row = ("--follow", {"action": "store_true", "help": "show the output until the job ends"})
_DRIVER: list[Row] = [
    ("--driver-cpus", {"metavar": "N", "type": float, "default": 0.0,
                       "help": "CPUs reserved for the driver (0: on the head node)"}),
    ("--driver-resources", {"metavar": "NAME=N,...", "help": "custom resources for the driver"}),
    ("--pip", {"metavar": "FILE", "type": _path, "help": "requirements to install on the cluster"}),
    ("--env", {"metavar": "NAME=VALUE", "action": "append", "default": [],
               "help": "an environment variable for driver and workers (no secrets); may be "
               "repeated"}),
]  # fmt: skip
_NOT_FOR_JOBS = (
    "--ray-address",
    "--backend",
    "--local",
    "--json",
)  # what of `run` a job does not take
SUBMIT: list[Row] = [
    *(flag for flag in RUN if flag[0] not in _NOT_FOR_JOBS),
    *(ADDRESS, _FOLLOW, *_DRIVER, JSON),
]
LOGS: list[Row] = [_JOB, _FOLLOW, ADDRESS]
CANCEL: list[Row] = [_JOB, ADDRESS]
