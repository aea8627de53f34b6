"""A fitted law and its predictions as JSON types, and what to measure to be surer of them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.evaluation.scaling.fit import BEYOND, MEASURED, Fit, Prediction
from autotune.study.manifest import Manifest

_WIDE = 2.0  # an interval of the time whose ends differ by more is worth a trial


def document(
    fit: Fit, manifest: Manifest, folder: Path, workers: Sequence[int], also: Sequence[Path] = ()
) -> dict[str, Any]:
    """All that is predicted; None stands for what is infinite, or not known.

    Args:
        folder: of the study.
        workers: the numbers of workers that are asked about.
        also: the folders of further studies that the law is fitted to.
    """
    made = [fit.predict(count) for count in workers]
    law = fit.law
    return {
        "study": manifest.name,
        "target": manifest.target.to_json(),
        "measured": {
            "workers": sorted(fit.workers),
            "batch_sizes": [round(size) for size in fit.batches],
        },
        "law": {
            "least_samples": law.least,
            "samples_per_batch_size": law.per_batch,
            "noise_batch_size": _known(law.noise),
            "noise_batch_size_interval": [_known(end) for end in fit.noise_interval],
            "noise_from": fit.source,
        },
        "workers": [_row(one) for one in made],
        "to_be_surer": probes(fit, made, manifest, folder, also),
    }


def _row(one: Prediction) -> dict[str, Any]:
    return {
        "workers": one.workers,
        "batch_size": one.batch_size,
        "batch_size_interval": list(one.batch_interval),
        "samples": one.samples,
        "seconds": one.seconds,
        "seconds_interval": [_known(end) for end in one.seconds_interval],
        "device_seconds": one.device_seconds,
        "device_seconds_interval": [_known(end) for end in one.device_seconds_interval],
        "communication": one.communication,
        "at_end": one.at_end,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def probes(
    fit: Fit,
    made: Sequence[Prediction],
    manifest: Manifest,
    folder: Path,
    also: Sequence[Path] = (),
) -> list[dict[str, str]]:
    """What to measure next: why, and how."""
    found = []
    if away := [one for one in made if one.communication != MEASURED]:
        most = max(away, key=lambda one: one.workers)
        found.append(
            {
                "why": f"what messages cost on {most.workers} workers is not measured",
                "how": _run(manifest, folder, most.workers, also),
            }
        )
    unsure = [one for one in made if one.at_end or _outside(fit, one) or _is_wide(one)]
    if unsure:
        most = max(unsure, key=lambda one: one.workers)
        known = "known roughly"
        if _outside(fit, most):
            known = "outside of the measured {:g} to {:g}".format(*fit.batches)
        found.append(
            {
                "why": f"batch size {most.batch_size} is {known}",
                "how": f"train at batch size {most.batch_size} to the target, its learning rate "
                "searched, with the same recipe",
            }
        )
    return found


def _outside(fit: Fit, one: Prediction) -> bool:
    low, high = fit.batches
    return not low <= one.batch_size <= high


def _is_wide(one: Prediction) -> bool:
    low, high = one.seconds_interval
    return high > _WIDE * low


def _run(manifest: Manifest, folder: Path, workers: int, also: Sequence[Path]) -> str:
    """The command that trains the best configuration on so many workers, and takes that in.

    Only trials with its plan and choices count, which the recipe's baseline need not have.
    """
    given = (manifest.options.recipe_arguments or {}).items()
    out = f"{folder}-{workers}-workers"
    train = [
        *("autotune", "run", manifest.options.recipe or "RECIPE"),
        *(part for name, value in given for part in ("--with", f"{name}={value}")),
        *("--workers", str(workers), "--from", str(folder), "--trials", "2"),
        *("--stages", "off", "--pruner", "none", "--out", out),
    ]
    take_in = ["autotune", "scale", str(folder), "--also", *map(str, also), out]
    return f"{shlex.join(train)}; {shlex.join(take_in)}"  # the target need not be reached


CONSIDERED = f"batch sizes up to {BEYOND:g} times beyond the measured ones are considered"
