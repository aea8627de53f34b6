"""Projection of the journal onto runs: which runs each line changes, and which points are new."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from autotune.algorithms.ranking.best import best
from autotune.algorithms.ranking.repeats import as_ranked, searched
from autotune.storage.journal import VERSION, Closed, Entry, Opened, from_line, version_after
from autotune.tracking.confirmed import confirmed, mean_of
from autotune.tracking.names import ShownNames, clean, run_name, text
from autotune.tracking.run_content import (
    STUDY,
    MetricPoint,
    RunContent,
    StudyInfo,
    against_baseline,
    document,
    is_comparable,
    outcome,
    params,
    reported,
    result_key,
    status,
    study_tags,
    tags,
    time_key,
)
from autotune.tracking.shared_view import experiment_tags
from autotune.trial import Ended, Params, Reported, Saved, State, Suggested, Trial, after
from autotune.trial.values import BUDGET, INTERRUPTED
from autotune.trial.wording import plain_result

_NAME = "mlflow.runName"  # the tag with a run's name: older runs have another one
_STATUS = {"done": "FINISHED", BUDGET: "FINISHED", INTERRUPTED: "KILLED"}
_TIMES = ("train_seconds", "samples_per_second")  # no two attempts take the same
_ONCE = (
    *("time_to_target_seconds", "censored_at_seconds", "speedup_vs_baseline"),
    *("time_to_target_steps", "censored_at_steps", "gain_vs_baseline"),
)


class Projection:
    """The runs as of the lines read so far. The same lines always give the same points."""

    def __init__(self, study: StudyInfo) -> None:
        self.study = study
        self.trials: dict[int, Trial] = {}
        self.lines = 0
        self._version = VERSION
        self._metric, self._param = ShownNames(), ShownNames()
        self._closed = ""
        self._begin_ms = self._end_ms = 0
        self._times: dict[int, tuple[int, int]] = {}
        self._furthest: dict[int, dict[str, int]] = {}
        self._sums: dict[int, dict[tuple[int, str], int]] = {}
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self._names: dict[int, str] = {}

    def take(self, line: bytes) -> dict[int, list[MetricPoint]]:
        """Read the next line: the runs that it changes, each with its new points.

        Raises:
            ValueError, TypeError, KeyError: the line is damaged or cannot follow.
        """
        entry, now = _read(line, self._version)
        self._version = version_after(entry, self._version)
        number = STUDY if isinstance(entry, Opened | Closed) else entry.trial
        before = self.trials.get(number)
        if not isinstance(entry, Opened | Closed):
            self.trials[number] = after(before, entry)
        self.lines += 1
        changed = self._noted(entry, number, before, now)
        if number in self.trials:
            self._settle(entry, number, self.trials[number])
            self.trials[number] = self._light(entry, self.trials[number])
        return changed

    def _light(self, entry: Entry, trial: Trial) -> Trial:
        """The trial without what is no longer needed, so that a long study takes little memory.

        Of a report that has been projected only the target's metric is still needed, and of a trial
        that has ended for good only the best report and the last.
        """
        metric = self.study.target.metric
        if isinstance(entry, Reported) and len(entry.report.metrics) > 1:
            kept = {k: v for k, v in entry.report.metrics.items() if k == metric}
            last = replace(entry.report, metrics=kept)
            return replace(trial, reports=(*trial.reports[:-1], last))
        if isinstance(entry, Ended) and not trial.resumable and len(trial.reports) > 2:
            counted = self.study.target.counted(trial) or trial.reports[-1]
            return replace(trial, reports=(counted, trial.reports[-1]))
        return trial

    def _noted(
        self, entry: Entry, number: int, before: Trial | None, now: int
    ) -> dict[int, list[MetricPoint]]:
        if now < self._end_ms:  # the clock went back, but the newest point is to be the latest
            now = self._end_ms + 1 if now else self._end_ms
        self._end_ms = now
        self._begin_ms = self._begin_ms or now
        if before is None or not (before.ended and self.trials[number].ended):
            self._times[number] = (self._times.get(number, (now, now))[0], now)
        self._closed = entry.reason if isinstance(entry, Closed) else ""
        return self._changed(entry, before, now)

    def _changed(
        self, entry: Entry, before: Trial | None, now: int
    ) -> dict[int, list[MetricPoint]]:
        if isinstance(entry, Opened):
            return {STUDY: []}
        if isinstance(entry, Closed):
            return {STUDY: self._progress(now)}
        number, trial = entry.trial, self.trials[entry.trial]
        if isinstance(entry, Ended):
            return self._ended(trial, now)
        if isinstance(entry, Suggested):
            self._name(trial)
            return {number: self._shared(trial, now)}
        if isinstance(entry, Reported):
            last = before.reports[-1] if before and before.reports else None
            values = reported(trial.config, entry.report, last)
            return {number: list(self._new(number, values, entry.report.step, now))}
        if before is not None and before.ended and not trial.ended:
            gone = {k: math.nan for k in _ONCE if k in self._furthest[number]}
            return {number: self._once(number, gone, now)}
        return {number: []}

    def _shared(self, trial: Trial, now: int) -> list[MetricPoint]:
        """The points that a fork shares with its parent, so that its curve begins at the start."""
        pairs = zip((None, *trial.reports), trial.reports, strict=False)
        return [
            point
            for last, report in pairs
            for point in self._new(trial.number, reported({}, report, last), report.step, now)
        ]

    def _new(
        self, number: int, values: Mapping[str, float], step: int, now: int
    ) -> Iterator[MetricPoint]:
        """New points. After an interruption the same steps are reported again: where values differ,
        the newer point of a step replaces the older one, as it does in a store.
        """
        furthest = self._furthest.setdefault(number, {})
        others = {k: v for k, v in values.items() if k not in _TIMES}
        times = {k: {k: values[k]} for k in _TIMES if k in values}
        for name, group in {**times, "": others}.items():
            differs = self._differs(number, (step, name), group)
            for key, value in ((self._metric(k), v) for k, v in group.items()):
                if differs or step > furthest.get(key, -1):
                    furthest[key] = max(step, furthest.get(key, -1))
                    yield MetricPoint(key, value, step, now)

    def _differs(self, number: int, place: tuple[int, str], values: Mapping[str, float]) -> bool:
        """Whether other values than these have been projected there."""
        sums, now = self._sums.setdefault(number, {}), zlib.crc32(repr([*values.items()]).encode())
        before, sums[place] = sums.get(place), now
        return before is not None and before != now

    def _settle(self, entry: Entry, number: int, trial: Trial) -> None:
        """Forget what cannot be reported again: it ended, or two checkpoints are later."""
        if isinstance(entry, Ended) and not trial.resumable:
            self._sums.pop(number, None)
        elif isinstance(entry, Saved) and trial.earlier is not None:
            sums, saved = self._sums.get(number, {}), trial.earlier.step
            self._sums[number] = {place: v for place, v in sums.items() if place[0] > saved}

    def _once(self, number: int, values: Mapping[str, float], now: int) -> list[MetricPoint]:
        """Points of the whole run, at its last step, where a later one replaces an earlier one.

        A store cannot remove a point: one that is no longer true is replaced by NaN.
        """
        furthest = self._furthest.setdefault(number, {})
        step = max(furthest.values(), default=0)
        shown = {self._metric(k): v for k, v in values.items()}
        furthest.update(dict.fromkeys(shown, step))
        return [MetricPoint(k, v, step, now) for k, v in shown.items()]

    def _ended(self, trial: Trial, now: int) -> dict[int, list[MetricPoint]]:
        points = {trial.number: self._once(trial.number, outcome(trial, self.study.target), now)}
        baseline = self._baseline()
        if baseline is not None:
            # Trials that ended before the baseline could not be compared with it until now.
            ended = self.trials.values() if trial is baseline else [trial]
            for other in [t for t in ended if is_comparable(t, baseline)]:
                value = against_baseline(other, baseline, self.study.target)
                points.setdefault(other.number, []).extend(self._once(other.number, value, now))
        if trial.repeats is not None:
            mean = mean_of(trial.repeats, self._everyone(), self.study.target)
            points[trial.repeats] = self._once(trial.repeats, mean, now)
        points[STUDY] = self._progress(now)
        return points

    def _progress(self, now: int) -> list[MetricPoint]:
        """The state of the study; the step is the line of the journal."""
        trials = self.trials.values()
        states = Counter(t.state for t in searched(list(trials)))
        target = self.study.target
        other = State.COMPLETED if target.timed else State.REACHED  # which no trial here can have
        values = {f"trials_{s.lower()}": float(states[s]) for s in State if s is not other}
        values["spent_seconds"] = math.fsum(t.spent_seconds for t in trials)
        leading = self.best()
        if leading is not None:
            values |= self._result(leading)
            baseline = self._baseline()
            if baseline is not None and is_comparable(leading, baseline):
                everyone = self._everyone()
                first, base = (as_ranked(t, everyone, target) for t in (leading, baseline))
                values |= against_baseline(first, base, target)
        values |= confirmed(leading, self._everyone(), self.study.target)
        return [MetricPoint(key, value, self.lines, now) for key, value in values.items()]

    def _result(self, leading: Trial) -> dict[str, float]:
        """The best trial's result."""
        target = self.study.target
        result = plain_result(target, target.result(leading))
        name = f"best_{time_key(target)}" if target.timed else result_key(target)
        return {name: result} if result is not None else {}

    def _everyone(self) -> list[Trial]:
        return list(self.trials.values())

    def _baseline(self) -> Trial | None:
        done = [t for t in self.trials.values() if t.kind == "baseline" and t.succeeded]
        return min(done, key=lambda t: t.number, default=None)

    def best(self) -> Trial | None:
        """The study's best trial, as `algorithms.ranking.best` defines it."""
        return best(self._everyone(), self.study.target)

    def content(self, number: int, over: bool) -> RunContent:
        """The run of a trial, or of the STUDY; `over` when no driver is running it."""
        if number == STUDY:
            return self._study(over)
        trial = self.trials[number]
        start, end = self._times[number]
        if over and not trial.ended:
            trial = replace(trial, state=State.CENSORED, reason=INTERRUPTED)
            end = self._end_ms
        name = self._names[number]
        own = {**study_tags(self.study), **tags(trial, self.study.plan_keys), _NAME: name}
        shown = params(trial, self._param, self._point(trial))
        return RunContent(name, status(trial), own, shown, start, end)

    def _name(self, trial: Trial) -> None:
        """Choose the names of its run and params, which then depend on the journal alone."""
        params(trial, self._param, self._point(trial))
        alike = trial.kind, trial.repeats
        self._counts[alike] += 1
        self._names[trial.number] = run_name(trial, self._counts[alike])

    def _point(self, trial: Trial) -> Params | None:
        """The trial's point in the space, or that of the trial which it repeats."""
        first = self.trials.get(trial.repeats) if trial.repeats is not None else None
        return trial.point if first is None else trial.point or first.point

    def experiment_tags(self) -> dict[str, str]:
        """The tags of the experiment: above all the view with which its page opens."""
        study, own = self.study, searched(self._everyone())
        return experiment_tags(study.study_id, study.target, own, self._metric, self._param)

    def _study(self, over: bool) -> RunContent:
        reason = self._closed or (INTERRUPTED if over else "")
        own = {
            **{clean(f"autotune.{k}"): v for k, v in self.study.others.items()},
            **study_tags(self.study),
            "autotune.kind": "study",
            "autotune.reason": text(reason),
        }
        aims = {f"target.{k}": text(v) for k, v in self.study.target.to_json().items()}
        state = _STATUS.get(reason, "FAILED") if over else "RUNNING"
        return RunContent(text(self.study.name), state, own, aims, self._begin_ms, self._end_ms)

    def best_json(self) -> str:
        """The best trial as one JSON document."""
        leading = self.best()
        if leading is None:
            return document({"trial": None})
        target = self.study.target
        result = plain_result(target, target.result(leading))
        first = {"trial": leading.number, result_key(target): result}
        names = ("kind", "seed", "config", "params", "hardware")
        rest = {name: getattr(leading, name) for name in names}
        return document(
            {**first, **rest, **confirmed(leading, self._everyone(), self.study.target)}
        )


def _read(line: bytes, version: int) -> tuple[Entry, int]:
    """The entry, and when it was written (milliseconds since 1970, 0 if it has no time)."""
    entry = from_line(line, version)
    time = json.loads(line).get("time")
    return entry, round(datetime.fromisoformat(time).timestamp() * 1000) if time else 0
