"""What a person sees of a study: live progress, plain lines, the final table, JSON documents."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune import proof
from autotune.experiment import Experiment
from autotune.repeats import confirming, next_to_confirm, searched, winner
from autotune.result import StudyResult, row, shown
from autotune.trackers.journal import encode
from autotune.trial import Ended, Event, Lost, Started, State, Target, Trial, usual_hardware

if TYPE_CHECKING:
    from autotune.driver.plan import Watch

_ROWS = 30  # running trials that are shown
_COLOURS = {
    State.REACHED: "green",
    State.CENSORED: "yellow",
    State.FAILED: "red",
    State.INFEASIBLE: "magenta",
    State.RUNNING: "cyan",
}


@contextlib.contextmanager
def progress(experiment: Experiment, trials: int) -> Iterator[Watch]:
    """A watch for `run`: a live display on a terminal, a plain line an event otherwise."""
    console = Console(file=sys.stderr)
    view = _Progress(experiment.target, trials)
    if not console.is_terminal:
        yield lambda event, all_trials: _print_event(event, all_trials, experiment.target)
        return
    with Live(get_renderable=view.render, console=console, refresh_per_second=4) as live:

        def watch(event: Event, all_trials: Mapping[int, Trial]) -> None:
            view.source = all_trials
            if isinstance(event, Ended) and event.error:
                live.console.print(_failure(event), markup=False, highlight=False)

        yield watch


@dataclass
class _Progress:
    target: Target
    total: int
    source: Mapping[int, Trial] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials as they are now; made for each picture and not for each event."""
        return tuple(dict(self.source).values())  # a copy first: another thread adds to it

    def render(self) -> Group:
        trials = self.trials
        running = [t for t in trials if t.placed]
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("running", "seconds", self.target.metric, "best", "configuration"):
            table.add_column(name, justify="left", no_wrap=True)
        for trial in running[:_ROWS]:
            last = trial.reports[-1].metrics.get(self.target.metric) if trial.reports else None
            table.add_row(
                _name(trial),
                f"{trial.seconds:.1f}",
                _number(last),
                _number(self.target.best(trial)),
                configuration(trial),
            )
        more = [Text(f"and {len(running) - _ROWS} more")] if len(running) > _ROWS else []
        return Group(Text(self.headline(trials)), table, *more)

    def headline(self, trials: tuple[Trial, ...]) -> str:
        best = winner(trials, self.target)
        own = searched(trials)
        ended, confirmed = [t for t in own if t.ended], confirming(trials)
        elapsed = time.monotonic() - self.begin
        left = elapsed / len(ended) * max(self.total - len(ended), 0) if ended else None
        parts = [
            f"{len(ended)}/{self.total} trials",
            ", ".join(f"{n} {s.lower()}" for s, n in counts(own).items() if n),
            f"{sum(t.ended for t in confirmed)} confirmations" if confirmed else "",
            f"best {best.seconds:.2f} s (trial {best.number})"
            if best
            else "target not reached yet",
            f"spent {sum(t.spent_seconds for t in trials):.0f} s",
            "starting workers" if left is None else f"about {left:.0f} s to go" if left else "",
        ]
        return " · ".join(p for p in parts if p)


def _print_event(event: Event, trials: Mapping[int, Trial], target: Target) -> None:
    trial = trials[event.trial]
    at = f"{event.at:8.1f} s  {_name(trial):<12}"
    match event:
        case Started():
            again = f" again from step {trial.checkpoint.step}" if trial.checkpoint else ""
            if trial.origin is not None and trial.attempts == 1:
                again = f" at step {trial.origin.checkpoint.step}"
            _line(f"{at} started{again}: {configuration(trial)}")
        case Lost():
            smaller = f", microbatch {event.microbatch} from here on" if event.microbatch else ""
            _line(f"{at} broke off: {event.reason}{smaller}")
            if event.error:
                _line(event.error)
        case Ended():
            detail = f" ({event.detail})" if event.detail else ""
            _line(f"{at} {outcome(trial, target)}{detail}")
            if event.error:
                _line(_failure(event))


def _failure(event: Ended) -> str:
    return f"trial {event.trial} failed:\n{event.error}"


def outcome(trial: Trial, target: Target) -> str:
    """How a trial ended, in words."""
    match trial.state:
        case State.REACHED:
            return f"reached {target.metric} {target.value:g} in {trial.seconds:.2f} s"
        case State.CENSORED:
            best = _number(target.best(trial))
            return f"censored after {trial.seconds:.2f} s, {trial.reason}; best {best}"
        case State.FAILED | State.INFEASIBLE:
            return f"{trial.state.lower()}: {trial.reason}"
    return "running"


def counts(trials: Sequence[Trial]) -> dict[State, int]:
    """How many trials are in each state."""
    found = Counter(t.state for t in trials)
    return {state: found[state] for state in State}


def configuration(trial: Trial) -> str:
    """What is searched, as the trial has it, on one line; all of it if it was given.

    Of a repeat only what it repeats.

    >>> from autotune.schedules import Cosine
    >>> configuration(Trial(0, {"lr": Cosine(0.4, 0.0), "data": "digits"}, {"lr.peak": 0.4}))
    'lr=cosine 0.4 -> 0'
    """
    if trial.repeats is not None:
        return f"trial {trial.repeats} again, seed {trial.seed}"
    point = trial.point
    names = trial.config if point is None else {n.partition(".")[0] for n in point}
    values = {name: trial.config[name] for name in trial.config if name in names}
    return "  ".join(f"{k}={_number(shown(v))}" for k, v in values.items())


# --- the end --------------------------------------------------------------------------------------


def print_result(result: StudyResult, held: Mapping[str, Any], out: TextIO) -> None:
    """The final table, the baseline's time and the ratio, and how to open MLflow."""
    console = Console(file=out, width=None if out.isatty() else 160)
    target = result.target
    table = Table(title=f"{held['name']}: time to {target.metric} {target.value:g}", box=None)
    for name, justify in (
        ("rank", "right"),
        ("trial", "left"),
        ("time to target", "right"),
        ("spent", "right"),
        (f"best {target.metric}", "right"),
        ("reason", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("configuration", overflow="fold")
    usual = usual_hardware(result.searched)
    for rank, trial in enumerate(result.ranked(), 1):
        reached = trial.time_to_target
        ranked = reached is not None and trial.hardware == usual
        at = f"{reached:.2f} s" if reached is not None else f"> {trial.seconds:.2f} s"
        table.add_row(
            str(rank) if ranked else "-",
            _name(trial),
            at if trial.state in (State.REACHED, State.CENSORED, State.RUNNING) else "-",
            f"{trial.spent_seconds:.1f} s",
            _number(target.best(trial)),
            trial.reason,
            configuration(trial),
            style=_COLOURS[trial.state] if out.isatty() else "",
        )
    console.print(table)
    if result.confirmed:
        console.print(proof.table(result.confirmed))
    console.print(_conclusion(result), markup=False, highlight=False)
    if left := _unfinished(result, held):
        console.print(left, markup=False, highlight=False, soft_wrap=True)
    uri = held.get("tracking_uri")
    if uri != "off":
        where = f"MLflow: {uri}" if uri else f"MLflow: autotune ui {result.folder}"
        console.print(where, markup=False, highlight=False, soft_wrap=True)


def _conclusion(result: StudyResult) -> str:
    best, baseline = result.best, result.baseline
    spent = f"{result.spent_seconds:.0f} s of worker groups spent"
    if best is None:
        return f"No trial reached the target; {spent}."
    held = result.confirmation(best)
    text = f"Best: trial {best.number} in {best.seconds:.2f} s"
    text += f" when it was tuned, {proof.line(proof.facts(held))}" if held is not None else ""
    if baseline is not None and baseline.number == best.number and held is not None:
        return (
            f"{text}; it is the baseline, which nothing beat when confirmed. {spent.capitalize()}."
        )
    if baseline is not None:
        again = result.confirmation(baseline) if held is not None else None
        told = outcome(baseline, result.target)
        text += f"; baseline: {proof.line(proof.facts(again)) if again is not None else told}"
    if result.confirmed_speedup is not None:
        text += f"; {_ratio(_sure(result))}"
    elif result.speedup is not None:
        text += f"; {result.speedup:.2f}x faster (one run each, not confirmed)"
    return f"{text}. {spent.capitalize()}."


def _unfinished(result: StudyResult, held: Mapping[str, Any]) -> str:
    """What is said where confirmations that were asked for have not been run."""
    asked = held.get("repeats", 0), held.get("top", 3)
    if next_to_confirm(result.trials, result.target, *asked) is None or result.best is None:
        return ""
    return f"Not all confirmations have been run; go on with: autotune resume {result.folder}"


def _ratio(sure: Mapping[str, Any]) -> str:
    """A confirmed speedup in words.

    >>> _ratio({"confirmed_speedup_vs_baseline": 1.5, "confirmed_speedup_bound": ">=",
    ...         "confirmed_speedup_interval": (0.9, 2.5)})
    '>=1.50x faster (confirmed; 95 % interval 0.90 to 2.50, so that it may be luck)'
    """
    said = f"{sure['confirmed_speedup_bound']}{sure['confirmed_speedup_vs_baseline']:.2f}x faster"
    interval = sure["confirmed_speedup_interval"]
    if interval is None:
        return f"{said} (confirmed; too few runs for an interval)"
    luck = ", so that it may be luck" if interval[0] <= 1 <= interval[1] else ""
    return f"{said} (confirmed; 95 % interval {interval[0]:.2f} to {interval[1]:.2f}{luck})"


def _sure(result: StudyResult) -> dict[str, Any]:
    """The confirmed speedup as `autotune.compare` has it: with its bound's sign and interval."""
    from autotune.comparison.sources import confirmed

    best, speedup, bound, interval = result.best, result.confirmed_speedup, "", None
    found = confirmed(result.folder) if speedup is not None else None
    rows = found.rows if found is not None and best is not None else ()
    row = next((r for r in rows if best is not None and r.candidate.trial == best.number), None)
    if row is not None and row.speedup is not None and not row.is_baseline:
        speedup, bound, ends = row.speedup, row.speedup_bound, row.speedup_interval
        if ends is not None and ends.low is not None and ends.high is not None:
            interval = ends.low, ends.high
    return {
        "confirmed_speedup_vs_baseline": speedup,
        "confirmed_speedup_bound": bound,
        "confirmed_speedup_interval": interval,
    }


def document(result: StudyResult, name: str) -> dict[str, Any]:
    """The whole result as one JSON document."""
    trials = [
        {**_facts(t, result.target), "clock": encode(t.clock), "attempts": t.attempts}
        for t in result.trials
    ]
    return {**summary(result, name), "trials": trials}


def summary(result: StudyResult, name: str) -> dict[str, Any]:
    """How a study stands, as JSON types."""
    by_state = {str(s): n for s, n in counts(result.searched).items()}
    return {
        "study": name,
        "folder": str(result.folder),
        "ended": result.ended,
        "target": encode(result.target),
        "counts": by_state,
        "best": best(result) if result.best is not None else None,
        "baseline": _facts(result.baseline, result.target) if result.baseline else None,
        "speedup_vs_baseline": result.speedup,
        "confirmed": [proof.facts(c) for c in result.confirmed],
        **_sure(result),
        "spent_seconds": result.spent_seconds,
        "repeats_spent_seconds": sum(
            t.spent_seconds for t in result.trials if t.repeats is not None
        ),
    }


def best(result: StudyResult) -> dict[str, Any]:
    """The best trial with its configuration, as JSON types.

    Raises:
        ValueError: no trial has reached the target.
    """
    if result.best is None:
        raise ValueError("no trial has reached the target")
    held = result.confirmation(result.best)
    told = proof.facts(held) if held is not None else None
    return {**_facts(result.best, result.target), "confirmed": told}


def _facts(trial: Trial, target: Target) -> dict[str, Any]:
    known = {k: v for k, v in row(trial, target).items() if not k.startswith("config.")}
    config, params = encode(dict(trial.config)), encode(trial.params)
    return {**encode(known), "config": config, "params": params, "seed": trial.seed}


def print_best(best: Mapping[str, Any], out: TextIO) -> None:
    """The best trial in a few lines."""
    forked = _from(best["parent"], best["parent_step"]) if best["parent"] is not None else ""
    print(
        f"trial {best['trial']}{forked}: {best['time_to_target_seconds']:.2f} s to target"
        f"{' when it was tuned' if best['confirmed'] else ''}",
        file=out,
    )
    if best["confirmed"]:
        print(f"  confirmed: {proof.line(best['confirmed'])}", file=out)
    from autotune.trackers.journal import decode_config

    for name, value in decode_config(best["config"]).items():
        print(f"  {name}: {shown(value)}", file=out)


def print_status(summary: Mapping[str, Any], out: TextIO) -> None:
    """How a study stands, in a few lines."""
    best, target = summary["best"], summary["target"]
    alive = "a driver is running" if summary["driver_alive"] else f"ended: {summary['ended']}"
    states = ", ".join(f"{n} {s.lower()}" for s, n in summary["counts"].items() if n) or "none yet"
    print(f"{summary['study']} ({alive})", file=out)
    print(f"  target: {target['metric']} {target['value']:g}", file=out)
    print(f"  trials: {states} of {summary['trials_planned']}", file=out)
    if best:
        forked = _from(best["parent"], best["parent_step"]) if best["parent"] is not None else ""
        seconds = f"{best['time_to_target_seconds']:.2f} s"
        print(f"  best: trial {best['trial']}{forked}, {seconds}", file=out)
        if best["confirmed"]:
            print(f"  confirmed: {proof.line(best['confirmed'])}", file=out)
    if summary["confirmed_speedup_vs_baseline"]:
        print(f"  against the baseline: {_ratio(summary)}", file=out)
    elif summary["speedup_vs_baseline"]:
        print(f"  baseline / best: {summary['speedup_vs_baseline']:.2f} (unconfirmed)", file=out)
    print(f"  spent: {summary['spent_seconds']:.0f} s", file=out)


def _name(trial: Trial) -> str:
    if trial.origin is not None:
        return f"{trial.number} from trial {trial.origin.parent}"
    of = f" of {trial.repeats}" if trial.repeats is not None else ""
    return f"{trial.number}" if trial.kind == "trial" else f"{trial.number} {trial.kind}{of}"


def _from(parent: int, step: int) -> str:
    return f" from trial {parent} at step {step}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
