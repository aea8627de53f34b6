"""What each command takes, as rows for argparse; a test freezes their names."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from autotune.errors import UserError

Flag = tuple[str, dict[str, Any]]


def duration(text: str) -> float:
    """Seconds of `90`, `90s`, `10m`, `1h30m`.

    >>> duration("1h30m"), duration("90")
    (5400.0, 90.0)

    Raises:
        UserError: anything else, or nothing above zero.
    """
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    number = r"\d+(?:\.\d+)?"
    if re.fullmatch(number, text):
        seconds = float(text)
    elif re.fullmatch(f"(?:{number}[hms])+", text):
        seconds = sum(float(n) * units[u] for n, u in re.findall(f"({number})([hms])", text))
    else:
        raise UserError(f"--time-limit must be like 90s, 10m or 1h30m but got {text!r}")
    if seconds <= 0:
        raise UserError(f"--time-limit must be more than 0 seconds but got {text!r}")
    return seconds


def _share(text: str) -> float:
    if not re.fullmatch(r"0?\.\d+|0", text):
        raise argparse.ArgumentTypeError(f"must be a share like 0.2, below 1, but got {text!r}")
    return float(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text):
        raise argparse.ArgumentTypeError(f"must be a whole number but got {text!r}")
    return int(text)


FOLDER: Flag = ("folder", {"metavar": "DIR", "type": Path, "help": "a study folder"})
JSON: Flag = ("--json", {"action": "store_true", "help": "print one JSON document on stdout"})
REGISTER: Flag = ("--register", {"metavar": "NAME", "help": "make the best trial's model a version "
                                 "of this registered model of MLflow's"})  # fmt: skip
WHERE: list[Flag] = [
    ("--time-limit", {"metavar": "10m", "help": "end the study after this time"}),
    ("--tracking-uri", {"metavar": "URI", "help": "MLflow's store (default: in the study folder)"}),
    ("--ray-address", {"metavar": "ADDR", "help": "a Ray cluster (default: start Ray here)"}),
    JSON,
]
RUN: list[Flag] = [
    ("recipe", {"metavar": "RECIPE", "help": "module:function or file.py:function"}),
    ("--trials", {"metavar": "N", "type": _count, "default": 20, "help": "in all (20)"}),
    ("--sampler", {"metavar": "NAME", "default": "auto", "help": "auto (by trials and "
     "baseline), convergence, tpe, widening, policy (or policy:actor, policy:reinforce, "
     "policy:ppo), random, qmc, gp, cmaes, nsga2, or an Optuna sampler's dotted path with "
     "keyword arguments"}),
    ("--from", {"metavar": "DIR", "type": Path, "dest": "start_from",
                "help": "a study whose policy to begin with (sampler policy, "
                "controller policy, or both)"}),
    ("--pruner", {"metavar": "NAME", "default": "convergence",
                  "help": "convergence (slower_than_best and forecast), "
                  "slower_than_best, forecast, asha, hyperband, bottom_at_same_time, each of "
                  "these with or without keyword arguments, as in "
                  "slower_than_best(factor=1.25); none, module:function or file.py:function"}),
    ("--controller", {"metavar": "NAME", "help": "regulator, policy, pbt, each with or "
                      "without keyword arguments, as in pbt(interval=2); module:function or "
                      "file.py:function (none)"}),
    ("--out", {"metavar": "DIR", "type": Path, "help": "the study folder (studies/NAME)"}),
    ("--seed", {"metavar": "N", "type": _count, "default": 0, "help": "of the study (0)"}),
    ("--repeats", {"metavar": "N", "type": _count, "default": 0,
                   "help": "confirm the best 3 and the baseline on N fresh seeds (0)"}),
    ("--racing", {"metavar": "SHARE", "type": _share, "help": "of the training that runs the "
                  "leader again on fresh seeds, in the second half of the search (what the study "
                  "has; a new one of 100 trials or more by convergence 0.2, else 0)"}),
    REGISTER,
    ("--mirror", {"action": "store_true", "help": "keep what resume needs in MLflow, too, "
                  "and go on with the study that MLflow has"}),
    ("--mix-hardware", {"action": "store_true", "help": "rank times on unequal hardware "
                        "together (default: only like with like)"}),
    *WHERE,
]  # fmt: skip
RESUME: list[Flag] = [
    ("folder", {"metavar": "DIR", "type": Path, "help": "a study folder; with "
                "--from-mlflow the study's name"}),
    ("--trials", {"metavar": "N", "type": _count, "help": "a new total"}),
    ("--from-mlflow", {"metavar": "URI", "help": "the MLflow server that keeps the study "
                       "(run --mirror); it is fetched from there first"}),
    ("--out", {"metavar": "DIR", "type": Path,
               "help": "the folder to fetch it into (studies/NAME)"}),
    REGISTER,
    *WHERE,
]  # fmt: skip
CONFIRM: list[Flag] = [
    FOLDER,
    ("--repeats", {"metavar": "N", "type": _count, "default": 5,
                   "help": "of each, in all (5)"}),
    ("--top", {"metavar": "K", "type": _count, "default": 3,
               "help": "of the fastest configurations (3)"}),
    *WHERE,
]  # fmt: skip
EXPORT: list[Flag] = [
    FOLDER,
    ("--to", {"metavar": "OUT", "type": Path, "help": "a new folder, for one trial"}),
    ("--trial", {"metavar": "N", "type": _count, "help": "which one (the best)"}),
    ("--optuna", {"metavar": "URL", "help": "sqlite:///FILE.db, for optuna-dashboard"}),
]  # fmt: skip
REPLAY: list[Flag] = [
    ("export", {"metavar": "OUT", "type": Path, "help": "what export --to OUT wrote"}),
    ("--repeats", {"metavar": "N", "type": _count, "default": 3, "help": "in all (3)"}),
    ("--out", {"metavar": "DIR", "type": Path,
               "help": "the study folder (studies/NAME-replay-TRIAL)"}),
    *WHERE,
]  # fmt: skip
COMPARE: list[Flag] = [
    ("sources", {"metavar": "SOURCE", "nargs": "+",
                 "help": "DIR, DIR#TRIAL, FILE.tsv or mlflow:EXPERIMENT/RUN"}),
    ("--baseline", {"metavar": "SOURCE", "help": "a source, or trial:N of the first study "
                    "(the first source's own baseline)"}),
    ("--allow", {"metavar": "TERM", "action": "append", "default": [], "help": "compare "
                 "although it differs: hardware, workers, sharing, clock or target"}),
    ("--target", {"metavar": "METRIC=VALUE", "help": "of published runs, and MLflow runs "
                  "of others (top5=93)"}),
    ("--report", {"metavar": "FILE.html", "type": Path, "help": "write the report"}),
    ("--csv", {"metavar": "FILE", "type": Path, "help": "write the table"}),
    ("--tracking-uri", {"metavar": "URI", "help": "MLflow's store (MLFLOW_TRACKING_URI)"}),
    JSON,
]  # fmt: skip
REPORT: list[Flag] = [
    FOLDER,
    ("--to", {"metavar": "FILE", "type": Path, "help": "(DIR/report.html)"}),
]
ADDRESS: Flag = ("--address", {"metavar": "URL", "help": "the dashboard of a Ray cluster, like "
                          "http://HEAD:8265 (RAY_API_SERVER_ADDRESS, RAY_ADDRESS)"})  # fmt: skip
_JOB: Flag = ("job", {"metavar": "ID", "help": "a job's id, as `autotune jobs` shows it"})
_FOLLOW: Flag = ("--follow", {"action": "store_true", "help": "show what it writes until it ends"})
_DRIVER: list[Flag] = [
    ("--driver-cpus", {"metavar": "N", "type": float, "default": 0.0,
                       "help": "CPUs reserved for the driver (0: on the head node)"}),
    ("--driver-resources", {"metavar": "NAME=N,...", "help": "custom resources for the driver"}),
    ("--pip", {"metavar": "FILE", "type": Path, "help": "requirements that the cluster installs"}),
    ("--env", {"metavar": "NAME=VALUE", "action": "append", "default": [],
               "help": "a variable of driver and workers (no secrets); may be repeated"}),
]  # fmt: skip
_ELSEWHERE = ("--ray-address", "--json")  # what of `run` a job has no use for
SUBMIT: list[Flag] = [
    *(flag for flag in RUN if flag[0] not in _ELSEWHERE),
    *(ADDRESS, _FOLLOW, *_DRIVER, JSON),
]
LOGS: list[Flag] = [_JOB, _FOLLOW, ADDRESS]
CANCEL: list[Flag] = [_JOB, ADDRESS]
