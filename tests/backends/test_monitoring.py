"""What a running study shows to a monitoring system, and what that costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sims import lines, race, racing, simulate

from autotune.algorithms.ranking.best import best
from autotune.backends import monitoring
from autotune.backends.monitoring import NAMES, Figure, Meter
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.trial import (
    Clock,
    Ended,
    Hardware,
    Interrupted,
    Report,
    Reported,
    Started,
    State,
    Suggested,
    Target,
    Trial,
    after,
)

TARGET = Target("val_accuracy", 1.0, limit=50)

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"


def by_name(figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        f.name + (f"/{f.labels['state']}" if "state" in f.labels else ""): f.value for f in figures
    }


def test_the_figures_of_a_study_are_those_of_its_trials(fast_path: Path) -> None:
    """At every event, of a study with failures, retries and trials that are stopped."""

    def curve(config: Any, seed: int) -> SimCurve:
        end = ["died", "finished", "boom"][int(1000 * config["rate"]) % 3]
        points = [
            SimPoint(10 * t, float(t), {"val_accuracy": config["rate"] * t / 10}) for t in range(9)
        ]
        return SimCurve(points, end=end)

    observed: list[Sequence[Figure]] = []
    moments = 0

    def check(event: Any, trials: Any) -> None:
        nonlocal moments
        moments += 1
        meter(event, trials)
        figures = by_name(observed[-1])
        counts = Counter(t.state for t in trials.values())
        for state in State:
            assert figures[f"autotune_trials/{state.lower()}"] == counts[state]
        best = min((t.seconds for t in trials.values() if t.state is State.REACHED), default=None)
        assert figures.get("autotune_best_seconds") == best
        spent = sum(t.spent_seconds for t in trials.values())
        assert figures["autotune_spent_seconds"] == pytest.approx(spent)
        assert figures["autotune_workers_busy"] == sum(t.placed for t in trials.values())
        assert figures["autotune_restarts"] == sum(t.retries for t in trials.values())

    meter = Meter("racing", TARGET, 9, 0, observed.append, every=0.0)
    simulate(
        racing([2.0, 4.0, 0.1, 0.101, 0.102]),
        fast_path,
        9,
        curve,
        workers=3,
        pruner="none",
        watch=check,
    )
    assert moments == len(observed) > 30
    assert max(by_name(t)["autotune_restarts"] for t in observed) > 0
    assert by_name(observed[-1])["autotune_trials_planned"] == 9
    without = NAMES.keys() - {"autotune_best_steps", "autotune_best_metric"}  # of other targets
    assert {f.name for figures in observed for f in figures} == without
    assert {f.labels["study"] for f in observed[-1]} == {"racing"}


def test_samples_and_gpus_of_trials_that_run() -> None:
    observed: list[Sequence[Figure]] = []
    meter = Meter("s", TARGET, 5, 0.5, observed.append, every=0.0)
    trials: dict[int, Any] = {}

    def happen(event: Any) -> dict[str, Any]:
        trials[event.trial] = after(trials.get(event.trial), event)
        meter(event, trials)
        return by_name(observed[-1])

    for number in (0, 1):
        happen(Suggested(number, {}, {}, "trial", 0))
        happen(Started(number, 0.0, Hardware("a", num_workers=4)))
        happen(Reported(number, Report(1000, 0.0, {}, Clock(train=1.0, eval=3.0))))
        found = happen(
            Reported(number, Report(3000, 0.0, {}, Clock(train=4.0, data=1.0, eval=9.0)))
        )
    assert found["autotune_samples_per_second"] == 2 * 2000 / 4
    assert (found["autotune_workers_busy"], found["autotune_gpus_busy"]) == (8, 4)
    found = happen(Interrupted(1, "worker died"))
    assert found["autotune_samples_per_second"] == 500
    assert (found["autotune_gpus_busy"], found["autotune_restarts"]) == (2, 1)
    meter.close()
    found = by_name(observed[-1])
    busy = ("autotune_workers_busy", "autotune_gpus_busy", "autotune_samples_per_second")
    assert [found[name] for name in busy] == [0, 0, 0], "nothing runs after the study"


def test_figures_are_passed_on_every_few_seconds_only(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event of thousands counts one trial: all are looked at only when somebody is told."""
    calls, looked, clock = 0, 0, 0.0

    def observe(figures: Sequence[Figure]) -> None:
        nonlocal calls
        calls += 1

    def leading(trials: list[Trial], target: Target) -> Trial | None:
        nonlocal looked
        looked += 1
        return best(trials, target)

    def watch(event: Any, trials: Any) -> None:
        nonlocal clock
        clock = event.at
        meter(event, trials)

    monkeypatch.setattr(monitoring, "best", leading)
    meter = Meter("racing", TARGET, 60, 1, observe, every=5.0, now=lambda: clock)
    result = simulate(racing([0.15]), fast_path, 60, workers=4, pruner="none", watch=watch)
    events = len(lines(fast_path)) - 2
    lasted = max(t.ended_at or 0.0 for t in result.trials)
    assert events > 500
    assert 1 < looked == calls <= lasted / 5.0 + 1


def test_a_virtual_clock_shows_nothing(fast_path: Path) -> None:
    simulate(racing([2.0]), fast_path, 2)
    assert not (fast_path / "prometheus.json").exists()


def test_a_pool_that_shows_figures_is_given_them(fast_path: Path) -> None:
    class Shown(SimPool):
        observed: list[Figure] = []  # noqa: RUF012

        def observe(self, figures: Sequence[Figure]) -> None:
            self.observed.extend(figures)

        def endpoints(self) -> list[str]:
            return ["127.0.0.1:1"]

    pool = Shown(race, 1, realtime=True)
    result = simulate(racing([2.0, 4.0]), fast_path, 2, pool=pool)
    assert {f.labels["study"] for f in pool.observed} == {"racing"}
    last = by_name(pool.observed)
    reached = sum(t.state is State.REACHED for t in result.trials)
    assert last["autotune_trials/reached"] == reached > 0, "also what came since the last export"
    assert last["autotune_trials/running"] == last["autotune_workers_busy"] == 0
    observed = json.loads((fast_path / "prometheus.json").read_text())
    assert observed == [{"labels": {"job": "ray"}, "targets": ["127.0.0.1:1"]}]


def test_servers_of_the_compose_file_listen_on_loopback() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    assert services.keys() == {"prometheus", "grafana"}
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    for service in services.values():
        assert "ports" not in service
        for volume in service["volumes"]:
            place = volume.partition(":")[0]
            assert not place.startswith(".") or (MONITORING / place).exists(), volume
    (job,) = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    assert "/studies/*/prometheus.json" in job["file_sd_configs"][0]["files"]
    (source,) = yaml.safe_load((MONITORING / "datasources.yml").read_text())["datasources"]
    assert source["url"] == "http://127.0.0.1:9090"


def test_repeats_are_no_trials_of_the_plan_and_no_best_time() -> None:
    observed: list[Sequence[Figure]] = []
    meter = Meter("race", TARGET, 1, 0, observed.append, every=0.0)
    trials: dict[int, Any] = {}
    events: list[Any] = []
    for number, repeats, seconds in ((0, None, 5.0), (1, 0, 2.0)):
        kind = "trial" if repeats is None else "confirm"
        events.append(Suggested(number, {}, None, kind, number, repeats=repeats))
        events.append(Started(number, 0.0, Hardware()))
        events.append(Ended(number, State.REACHED, "target", seconds))
    for event in events:
        trials[event.trial] = after(trials.get(event.trial), event)
        meter(event, trials)
    figures = by_name(observed[-1])
    assert figures["autotune_trials/reached"] == 1
    assert figures["autotune_best_seconds"] == 5.0
