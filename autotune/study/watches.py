"""What is done after each event of a study beside its loop: watches, one around the other.

Each returns what the user's watch returned: the loop refuses a watch that must be awaited.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.backends.monitoring import Meter
from autotune.backends.protocol import Observed, Pool
from autotune.study.driver.settings import StudySettings
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


def saving(settings: StudySettings, folder: Path, watch: Watch | None) -> Watch | None:
    """A watch that also saves what a controller has learned, whenever a trial has ended."""
    document = getattr(settings.controller, "document", None)
    if document is None:
        return watch
    from autotune.algorithms.controllers import weights_file

    def saving(event: Event, trials: Mapping[int, Trial]) -> Any:
        if isinstance(event, Ended):
            weights = document(tuple(trials.values()), settings.experiment.target)
            weights_file.write(folder, settings.experiment.name, weights)
        return watch(event, trials) if watch is not None else None

    return saving


@contextlib.contextmanager
def metered(
    watch: Watch | None, settings: StudySettings, folder: Path, pool: Pool
) -> Iterator[Watch | None]:
    """A watch that also exports metrics, where the pool can show them; the last ones at the end.

    `prometheus.json` beside the journal says where, for Prometheus.
    """
    if not pool.realtime or not isinstance(pool, Observed):
        yield watch
        return
    scaling = settings.experiment.scaling
    name, target = settings.experiment.name, settings.experiment.target
    meter = Meter(name, target, settings.trials, scaling.gpus, pool.observe)
    targets = [{"labels": {"job": "ray"}, "targets": pool.endpoints()}]
    with contextlib.suppress(OSError):
        (folder / "prometheus.json").write_text(json.dumps(targets) + "\n")

    def exporting(event: Event, trials: Mapping[int, Trial]) -> Any:
        meter(event, trials)
        return watch(event, trials) if watch is not None else None

    try:
        yield exporting
    finally:
        meter.close()
