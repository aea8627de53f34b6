"""What is done after each event of a study beside its loop: watches, one around the other.

Each returns what the user's watch returned: the loop refuses a watch that must be awaited.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.backends.monitoring import Meter
from autotune.backends.protocol import Observed, Pool
from autotune.study.driver.plan import Plan
from autotune.study.options import Watch
from autotune.trial import Ended, Event, Trial


def one_after_the_other(first: Watch | None, second: Watch | None) -> Watch | None:
    """A watch that calls both."""
    if first is None or second is None:
        return first or second

    def both(event: Event, trials: Mapping[int, Trial]) -> Any:
        first(event, trials)
        return second(event, trials)

    return both


def after_notes(notes: str, watch: Watch | None) -> Watch:
    """A watch that prints `notes` first, once the study has begun."""
    left = [notes]

    def noting(event: Event, trials: Mapping[int, Trial]) -> Any:
        if left:
            print(left.pop(), file=sys.stderr, flush=True)
        return watch(event, trials) if watch is not None else None

    return noting


def saving(plan: Plan, folder: Path, watch: Watch | None) -> Watch | None:
    """A watch that also saves what a controller has learned, whenever a trial has ended."""
    document = getattr(plan.controller, "document", None)
    if document is None:
        return watch
    from autotune.algorithms.controllers import weights_file

    def saving(event: Event, trials: Mapping[int, Trial]) -> Any:
        if isinstance(event, Ended):
            weights = document(tuple(trials.values()), plan.experiment.target)
            weights_file.write(folder, plan.experiment.name, weights)
        return watch(event, trials) if watch is not None else None

    return saving


def metered(watch: Watch | None, plan: Plan, folder: Path, pool: Pool) -> Watch | None:
    """A watch that also exports metrics, where the pool can show them.

    `prometheus.json` beside the journal says where, for Prometheus.
    """
    if not pool.realtime or not isinstance(pool, Observed):
        return watch
    scaling = plan.experiment.scaling
    name, target = plan.experiment.name, plan.experiment.target
    meter = Meter(name, target, plan.trials, scaling.gpus, pool.observe)
    targets = [{"labels": {"job": "ray"}, "targets": pool.endpoints()}]
    with contextlib.suppress(OSError):
        (folder / "prometheus.json").write_text(json.dumps(targets) + "\n")

    def metered(event: Event, trials: Mapping[int, Trial]) -> Any:
        meter(event, trials)
        return watch(event, trials) if watch is not None else None

    return metered
