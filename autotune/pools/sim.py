"""A pool on a virtual clock over recorded learning curves, to test and compare what decides.

Nothing trains and nothing waits: a study of many trials takes milliseconds, and the same seed gives
the same journal.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from autotune.pools import Broke, Finished, Launch, Progress, Raised, Signal, Stopped
from autotune.trial import Change, Checkpoint, Clock, Config, Hardware, Metrics, Report


@dataclass(frozen=True)
class Point:
    """One milestone of a recorded run: `seconds` of training since its start."""

    step: int
    seconds: float
    metrics: Metrics


@dataclass(frozen=True)
class Curve:
    """A recorded run, and how it ended: by itself, by an error, or by a dying worker."""

    points: Sequence[Point]
    end: str = "finished"
    setup_seconds: float = 0.0


Simulate = Callable[[Config, int], Curve]
GoOn = Callable[[Config, int, Point], Curve]


@dataclass
class _Running:
    launch: Launch
    curve: Curve
    first: int
    next: int
    saved: Checkpoint | None = None


@dataclass
class SimPool:
    """Runs `simulate(config, seed)`, the recorded curve of a configuration, on `workers` groups.

    Args:
        simulate: the curve that stands for a configuration; a function of its arguments only.
        workers: trials that run at the same time.
        eval_seconds: virtual seconds of each evaluation (counted on the `wall` clock only).
        go_on: for trials that go on from another's checkpoint: the curve of a configuration from
            the point at which the checkpoint was made, which is the curve's first. Without it a
            trial goes on along its own configuration's curve.
    """

    simulate: Simulate
    workers: int = 8
    eval_seconds: float = 0.0
    realtime: bool = False
    go_on: GoOn | None = None
    _now: float = 0.0
    _running: dict[int, _Running] = field(default_factory=dict)
    _agenda: list[tuple[float, int, Signal]] = field(default_factory=list)
    _count: int = 0

    def busy(self) -> int:
        return len(self._running)

    def capacity(self) -> int:
        return self.workers - len(self._running)

    def start(self, launch: Launch) -> Hardware:
        if launch.checkpoint is not None and self.go_on is not None:
            curve = self.go_on(launch.config, launch.seed, _point(launch.checkpoint))
        else:
            curve = self.simulate(launch.config, launch.seed)
        step = launch.checkpoint.step if launch.checkpoint else -1
        first = next((i for i, p in enumerate(curve.points) if p.step > step), len(curve.points))
        self._running[launch.trial] = _Running(launch, curve, first, first)
        self._go_on(launch.trial, curve.setup_seconds)
        return Hardware(device="sim")

    def resume(self, trial: int, change: Change | None, save: Path | None) -> None:
        running = self._running[trial]
        running.saved = self._checkpoint(running) if save else None
        self._go_on(trial, 0.0)

    def stop(self, trial: int, save: Path | None) -> None:
        running = self._running[trial]
        saved = self._checkpoint(running) if save else None
        self._at(0.0, Stopped(trial, saved))

    def wait(self, timeout: float | None) -> Signal | None:
        if not self._agenda:
            return None
        if timeout is not None and self._agenda[0][0] > self._now + timeout:
            self._now += timeout
            return None
        self._now, _, signal = heapq.heappop(self._agenda)
        if not isinstance(signal, Progress):
            del self._running[signal.trial]
        return signal

    def wake(self) -> None:
        """Nothing waits on a virtual clock."""

    def now(self) -> float:
        return self._now

    def close(self) -> None:
        self._agenda.clear()
        self._running.clear()

    def _go_on(self, trial: int, delay: float) -> None:
        running = self._running[trial]
        points = running.curve.points
        if running.next == len(points):
            end = running.curve.end
            broke, ended = Broke(trial, "worker died"), Finished(trial)
            failed = Raised(trial, error=end, reason=end)
            self._at(delay, ended if end == "finished" else broke if end == "died" else failed)
            return
        before = points[running.next - 1].seconds if running.next else 0.0
        point = points[running.next]
        running.next += 1
        report = self._report(running, point, delay)
        after = delay + point.seconds - before + self.eval_seconds
        self._at(after, Progress(trial, report, can_save=True, saved=running.saved))

    def _report(self, running: _Running, point: Point, setup: float) -> Report:
        evaluated = self._evaluated(running)
        clock = Clock(setup=setup or running.launch.base.setup, train=point.seconds, eval=evaluated)
        return Report(point.step, clock.seconds(running.launch.clock), dict(point.metrics), clock)

    def _checkpoint(self, running: _Running) -> Checkpoint:
        point = running.curve.points[running.next - 1]
        clock = Clock(train=point.seconds, eval=self._evaluated(running))
        state = quote(json.dumps(dict(point.metrics)), safe="")
        return Checkpoint(point.step, f"sim:{running.launch.trial}/{point.step}?{state}", clock)

    def _evaluated(self, running: _Running) -> float:
        return running.launch.base.eval + (running.next - running.first) * self.eval_seconds

    def _at(self, delay: float, signal: Signal) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self._now + delay, self._count, signal))


def _point(checkpoint: Checkpoint) -> Point:
    """The point at which a checkpoint was made, which is all that a simulated state is."""
    metrics = json.loads(unquote(checkpoint.path.partition("?")[2]))
    return Point(checkpoint.step, checkpoint.clock.train, metrics)
