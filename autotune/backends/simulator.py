"""A pool on a virtual clock over recorded learning curves, to test and compare what decides.

Nothing trains and nothing waits: a study of many trials takes milliseconds, and the same seed gives
the same journal. Where a controller turns knobs, a generator of points stands for the run and is
sent the changes; it may really train, as it still reports the seconds that count.
"""

from __future__ import annotations

import copy
import heapq
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from autotune.backends.protocol import (
    Finished,
    Launch,
    Progress,
    Raised,
    Signal,
    Stopped,
    WorkerFailed,
)
from autotune.trial import (
    STEPS,
    Change,
    Checkpoint,
    Clock,
    Config,
    Hardware,
    Metrics,
    Report,
    measured,
)

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class SimPoint:
    """One milestone of a recorded run: `seconds` of training since its start, `waited` of them.

    `save`, of a live run, gives its state there: a run goes on from a copy, `config["state"]`.
    """

    step: int
    seconds: float
    metrics: Metrics
    waited: float | None = None
    save: Callable[[], object] | None = None


@dataclass(frozen=True)
class SimCurve:
    """A recorded run, and its end: `finished`, `died` (a worker), `out of memory`, or an error.

    `returned` is the last report, at the end, of a trainer that returns its metrics.

    A point's metrics are read when its milestone is reported, and not at all if the trial is
    stopped before: they may be a mapping that computes them then.
    """

    points: Sequence[SimPoint]
    end: str = "finished"
    setup_seconds: float = 0.0
    returned: SimPoint | None = None


Live = Generator[SimPoint, Change | None, None]
"""Yields a run's points, is sent a controller's changes, and goes on after `config["state"]`."""
Simulate = Callable[[Config, int], SimCurve | Live]
GoOn = Callable[[Config, int, SimPoint], SimCurve]


@dataclass
class _Running:
    launch: Launch
    curve: SimCurve
    first: int
    next: int
    live: Live | None = None
    saved: Checkpoint | None = None
    begun: float = 0.0

    def extend(self, change: Change | None) -> None:
        """Advance a live run to its next point, if it has one."""
        if self.live is None:
            return
        points = self.curve.points
        try:
            point = self.live.send(change) if points else next(self.live)
        except StopIteration:
            return
        self.curve = replace(self.curve, points=(*points, point))


@dataclass(frozen=True)
class _Due:
    """The next milestone of a trial; its report is made when its time has come."""

    trial: int
    setup: float


@dataclass
class SimPool:
    """Runs `simulate(config, seed)`, the recorded curve of a configuration, on `workers` groups.

    Args:
        simulate: the curve, or live run, that stands for a configuration and a seed; a function of
            its arguments (and of what it is sent) only.
        workers: trials that run at the same time.
        eval_seconds: virtual seconds of each evaluation (counted on the `wall` clock only).
        rank_memory: bytes that each rank of a trial has; None: not known.
        go_on: for trials that continue from another's checkpoint: the curve of a configuration
            from the point at which the checkpoint was made, which is the curve's first. Without it
            a trial continues along its own configuration's curve.
    """

    simulate: Simulate
    workers: int = 8
    eval_seconds: float = 0.0
    realtime: bool = False
    go_on: GoOn | None = None
    rank_memory: int | None = None
    _now: float = 0.0
    _running: dict[int, _Running] = field(default_factory=dict)
    _agenda: list[tuple[float, int, Signal | _Due]] = field(default_factory=list)
    _count: int = 0
    _states: dict[str, object] = field(default_factory=dict)

    def busy(self) -> int:
        return len(self._running)

    def capacity(self) -> int:
        return self.workers - len(self._running)

    def start(self, launch: Launch) -> Hardware:
        made: SimCurve | Live
        if launch.checkpoint is not None and self.go_on is not None:
            made = self.go_on(_trainer_config(launch), launch.seed, _point(launch.checkpoint))
        else:
            made = self.simulate(self._config(launch), launch.seed)
        live = None if isinstance(made, SimCurve) else made
        curve = made if isinstance(made, SimCurve) else SimCurve(())
        step = launch.checkpoint.step if launch.checkpoint else -1
        first = next((i for i, p in enumerate(curve.points) if p.step > step), len(curve.points))
        begun = launch.checkpoint.clock.train if launch.checkpoint and live else 0.0
        self._running[launch.trial] = _Running(launch, curve, first, first, live, begun=begun)
        self._go_on(launch.trial, curve.setup_seconds)
        return self.next_hardware()

    def next_hardware(self, comparable_to: Hardware | None = None) -> Hardware:
        return Hardware(device="sim")

    def memory(self, comparable_to: Hardware | None = None) -> int | None:
        return self.rank_memory

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        running = self._running[trial]
        running.saved = self._checkpoint(running) if save else None
        self._go_on(trial, 0.0, change)

    def stop(self, trial: int, save: str | None) -> None:
        running = self._running[trial]
        saved = self._checkpoint(running) if save else None
        if running.live is not None:
            running.live.close()
        self._at(0.0, Stopped(trial, saved))

    def wait(self, timeout: float | None) -> Signal | None:
        if not self._agenda:
            return None
        if timeout is not None and self._agenda[0][0] > self._now + timeout:
            self._now += timeout
            return None
        self._now, _, signal = heapq.heappop(self._agenda)
        if isinstance(signal, _Due):
            running = self._running[signal.trial]
            point = running.curve.points[running.next - 1]
            report = self._report(running, point, signal.setup)
            can_save = running.live is None or point.save is not None
            return Progress(signal.trial, report, can_save=can_save, saved=running.saved)
        del self._running[signal.trial]
        return signal

    def wake(self) -> None:
        """Do nothing: nothing waits on a virtual clock."""

    def now(self) -> float:
        return self._now

    def close(self) -> None:
        self._agenda.clear()
        for running in self._running.values():
            if running.live is not None:
                running.live.close()
        self._running.clear()

    def _go_on(self, trial: int, delay: float, change: Change | None = None) -> None:
        running = self._running[trial]
        running.extend(change)
        points = running.curve.points
        before = points[running.next - 1].seconds if running.next else running.begun
        if running.next == len(points):
            last = running.curve.returned
            spent = last.seconds - before if last is not None else 0.0
            self._at(delay + spent, self._end_signal(running))
            return
        point = points[running.next]
        running.next += 1
        self._at(delay + point.seconds - before + self.eval_seconds, _Due(trial, delay))

    def _report(self, running: _Running, point: SimPoint, setup: float) -> Report:
        evaluated = self._evaluated(running)
        clock = Clock(setup=setup or running.launch.base.setup, train=point.seconds, eval=evaluated)
        seconds = measured(running.launch.clock, point.step, clock)
        waited = point.waited if running.launch.clock != STEPS else None
        return Report(point.step, seconds, dict(point.metrics), clock, waited)

    def _checkpoint(self, running: _Running) -> Checkpoint:
        point = running.curve.points[running.next - 1]
        clock = Clock(train=point.seconds, eval=self._evaluated(running))
        place = f"sim:{running.launch.trial}/{point.step}"
        if self.go_on is not None:  # else nobody asks, and metrics may cost something to look up
            place += f"?{quote(json.dumps(dict(point.metrics)), safe='')}"
        if point.save is not None:
            self._states[place] = copy.deepcopy(point.save())
        return Checkpoint(point.step, place, clock)

    def _end_signal(self, running: _Running) -> Signal:
        """What a pool signals where a recorded run ends."""
        trial, end, last = running.launch.trial, running.curve.end, running.curve.returned
        if end == "finished":
            report = self._report(running, last, 0.0) if last is not None else None
            return Finished(trial, report)
        if end == "died":
            return WorkerFailed(trial, "worker died")
        return Raised(trial, end, end, out_of_memory=end == OUT_OF_MEMORY)

    def _evaluated(self, running: _Running) -> float:
        return running.launch.base.eval + (running.next - running.first) * self.eval_seconds

    def _config(self, launch: Launch) -> Config:
        """The trainer's configuration, with the state that a live run has saved."""
        config, saved = _trainer_config(launch), launch.checkpoint
        if saved is None or saved.path not in self._states:
            return config
        return {**config, "state": copy.deepcopy(self._states[saved.path])}

    def _at(self, delay: float, signal: Signal | _Due) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self._now + delay, self._count, signal))


def _trainer_config(launch: Launch) -> Config:
    """The configuration that the trainer gets."""
    if launch.microbatch is None:
        return launch.config
    return {**launch.config, "microbatch": launch.microbatch}


def _point(checkpoint: Checkpoint) -> SimPoint:
    """The point at which a checkpoint was made: all the state of a simulated trial."""
    metrics = json.loads(unquote(checkpoint.path.partition("?")[2]))
    return SimPoint(checkpoint.step, checkpoint.clock.train, metrics)
