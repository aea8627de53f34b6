"""How the options of a study are spelled on the command line, and how their texts are read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import canonical, unknown
from autotune.study.option import AUTO_OR_OFF_NAMES, BACKENDS, Flag, auto_or_off
from autotune.study.recipe_arguments import pair
from autotune.trial.checks import LONGEST_SECONDS


def backend_name(text: str) -> str:
    """The name of a backend that was typed.

    Raises:
        ValueError: there is none of this name.
    """
    name = canonical(text, BACKENDS)
    if name not in BACKENDS:
        raise ValueError(unknown("backend", text, BACKENDS))
    return name


def whole_number(text: str) -> int:
    """A whole number that was typed.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(f"must be a whole number but got {text!r}")
    return int(text)


def duration(text: str) -> float:
    """Seconds of `90`, `90s`, `10m` or `10min`, `1h30m`.

    >>> duration("1h30m"), duration("10min"), duration("90")
    (5400.0, 600.0, 90.0)

    Raises:
        ValueError: anything else, nothing above zero, or more than 1e9 seconds.
    """
    units = {"h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}
    number = r"\d+(?:\.\d+)?"
    if re.fullmatch(number, text):
        seconds = float(text)
    elif re.fullmatch(f"(?:{number}(?:h|min|m|s))+", text):
        seconds = sum(float(n) * units[u] for n, u in re.findall(f"({number})(h|min|m|s)", text))
    else:
        raise ValueError(f"must be like 90s, 10m or 1h30m but got {text!r}")
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(
            f"must be more than 0 seconds and at most {LONGEST_SECONDS:g} but got {text!r:.80}"
        )
    return seconds


def number(text: str) -> float:
    """A number that was typed; whole ones are whole.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", text):
        raise ValueError(f"must be a number like 1 or 0.5 but got {text!r}")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"must be a number like 1 or 0.5 but got {text!r:.80}")
    return int(value) if value == int(value) else value


def share(text: str) -> float:
    if not re.fullmatch(r"0?\.\d+|0", text):
        raise ValueError(f"must be a share like 0.2, below 1, but got {text!r}")
    return float(text)


def switched(text: str) -> str:
    """`auto` or `off` that was typed.

    Raises:
        ValueError: it is neither.
    """
    name = str(auto_or_off(text))
    if name not in AUTO_OR_OFF_NAMES:
        raise ValueError(f"must be auto or off but got {text!r}")
    return name


FLAGS: Mapping[str, Flag] = {
    "trials": Flag("--trials", "search", "total number of trials (20)", "N", whole_number),
    "sampler": Flag(
        "--sampler",
        "search",
        "auto (by experience, trials and baseline), experienced, convergence, tpe, widening, "
        "policy (trained before; or policy:FILE.npz), policy:elite, random, qmc, gp, cmaes, nsga2, "
        "or an Optuna sampler's dotted path with keyword arguments",
        "NAME",
    ),
    "start_from": Flag(
        "--from",
        "search",
        "an earlier study to start from: its best configurations run first, and what it showed is "
        "known; for sampler policy:elite and controller policy, its policy; may be repeated",
        "DIR",
        Path,
        several=True,
    ),
    "experience": Flag(
        "--experience",
        "search",
        "the folder with summaries of studies, from which this one begins and to which it adds its "
        "own, or off (AUTOTUNE_EXPERIENCE, else ~/.local/share/autotune/experience)",
        "DIR",
    ),
    "pruner": Flag(
        "--pruner",
        "search",
        "auto (convergence; for a target without a value bottom_at_same_time), convergence "
        "(slower_than_best and forecast), slower_than_best, forecast, asha, hyperband, "
        "bottom_at_same_time, policy, each of these with or without keyword arguments, as in "
        "slower_than_best(factor=1.25); none, module:function or file.py:function",
        "NAME",
    ),
    "controller": Flag(
        "--controller",
        "search",
        "regulator, policy, noise_scale, pbt, autolrs, each with or without keyword arguments, "
        "as in pbt(interval=2); module:function or file.py:function (none)",
        "NAME",
    ),
    "out": Flag("--out", "search", "the study folder (studies/NAME)", "DIR", Path),
    "workers": Flag(
        "--workers", "search", "ranks of one trial (as the recipe says)", "N", whole_number
    ),
    "cpus_per_worker": Flag(
        "--cpus-per-worker", "search", "CPU cores of a rank (as the recipe says)", "N", number
    ),
    "gpus_per_worker": Flag(
        "--gpus-per-worker",
        "search",
        "GPUs of a rank, 0 for none (as the recipe says; where it says nothing 1, if the "
        "cluster has enough)",
        "N",
        number,
    ),
    "seed": Flag("--seed", "search", "the study's seed (0)", "N", whole_number),
    "repeats": Flag(
        "--repeats",
        "search",
        "confirm the best 3 and the baseline on N fresh seeds (0)",
        "N",
        whole_number,
    ),
    "racing": Flag(
        "--racing",
        "search",
        "the share of training that may run the leader again on fresh seeds during the search "
        "(in a resumed study as before; in a new one 0.2 for more than 40 trials and 0.3 for 100 "
        "or more by convergence or experienced, without a controller; else 0)",
        "SHARE",
        share,
    ),
    "stages": Flag(
        "--stages",
        "search",
        "auto: where the recipe searches parameters that change only the seconds per sample, probe "
        "these first and search the others; off: search all of them (auto; in a resumed study as "
        "before)",
        "auto|off",
        switched,
    ),
    "shared_beginnings": Flag(
        "--shared-beginnings",
        "search",
        "auto: where the recipe's schedules begin alike, trials of one training seed begin from "
        "each other's checkpoints; off: each trains from its first step (auto; in a resumed study "
        "as before)",
        "auto|off",
        switched,
    ),
    "recipe_arguments": Flag(
        "--with",
        "search",
        "an argument of the recipe, as in --with data=DIR; may be repeated",
        "KEY=VALUE",
        pair,
        repeated=True,
    ),
    "mirror": Flag(
        "--mirror",
        "tracking",
        "copy what resume needs to MLflow, and resume the study that MLflow has",
    ),
    "mix_hardware": Flag(
        "--mix-hardware",
        "tracking",
        "rank times on unequal hardware together (default: only on equal hardware)",
    ),
    "time_limit": Flag("--time-limit", "place", "end the study after this time", "10m", duration),
    "wait_idle": Flag(
        "--wait-idle",
        "place",
        "before confirmations wait so long, at most, for a machine on which nothing else runs "
        "(warn only)",
        "10m",
        duration,
    ),
    "tracking_uri": Flag(
        "--tracking-uri", "place", "MLflow's store (default: in the study folder)", "URI"
    ),
    "max_concurrent_trials": Flag(
        "--max-concurrent-trials",
        "place",
        "trials at once (as many as fit); 1 with --local: in this very process",
        "N",
        whole_number,
    ),
    "backend": Flag(
        "--backend",
        "place",
        "ray, local (processes of this machine, without a cluster), or auto: local for trials "
        "of one rank without GPUs and --ray-address (auto; in a resumed study as before)",
        "NAME",
        backend_name,
    ),
    "ray_address": Flag(
        "--ray-address", "place", "a Ray cluster (default: start Ray here)", "ADDR"
    ),
    "top": Flag(
        "--top", "confirm", "how many of the fastest configurations (3)", "K", whole_number
    ),
}
"""The flag of each option that has one, by the option's name; in the order of the command line."""
