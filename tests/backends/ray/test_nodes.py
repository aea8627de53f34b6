"""A real cluster of several nodes, which come and go while a study runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nodes_recipe
import psutil
import pytest
import toys
from namespaces import Network, network
from nodes import Cluster, cluster, environment

from autotune.backends.worker import hardware_probe
from autotune.cli import main
from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.study.result import read
from autotune.trial import (
    Ended,
    Event,
    Interrupted,
    Saved,
    Started,
    State,
    Suggested,
    Target,
    Trial,
    fold,
)

TRIALS = 6
DEADLINE = 900.0  # a guard against hangs, for what takes a second or two on an idle machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass
class Study:
    """A study in a folder, driven by `autotune` in processes of their own."""

    folder: Path
    within: Sequence[str] = ()  # a command that starts another one, say in a network of its own

    @property
    def log(self) -> Path:
        return self.folder.parent / "log"

    def command(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.within, sys.executable, "-m", "autotune", *words, "--tracking-uri", "off"],
            env=environment({"NODES_LOG": str(self.log)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, recipe: str, address: str, trials: int, *more: str) -> subprocess.Popen[str]:
        where = ("--out", str(self.folder), "--ray-address", address)
        how = ("--sampler", "random", "--pruner", "none", "--racing", "0", "--trials", str(trials))
        return self.command("run", f"{nodes_recipe.__file__}:{recipe}", *where, *how, *more)

    def pace(self, nap: float | str) -> None:
        """Seconds a step from now on, or `hold`."""
        file = self.folder.parent / "nap"
        file.with_suffix(".new").write_text(str(nap))
        file.with_suffix(".new").replace(file)

    def lines(self) -> list[dict[str, Any]]:
        file = self.folder / JOURNAL
        whole = file.read_text().rpartition("\n")[0] if file.is_file() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def events(self) -> list[Event]:
        if not (self.folder / JOURNAL).is_file():
            return []
        return [e for e in journal.read(self.folder) if not isinstance(e, Opened | Closed)]

    def trials(self) -> dict[int, Trial]:
        return fold(self.events())

    def running(self) -> list[Trial]:
        return [t for t in self.trials().values() if t.placed]

    def saved(self) -> list[Trial]:
        """Those that run and have something to lose that is saved."""
        return [t for t in self.running() if t.checkpoint is not None and t.checkpoint.step > 0]

    def until(self, holds: Callable[[], Any], driver: subprocess.Popen[str]) -> Any:
        end = time.monotonic() + DEADLINE
        while not (found := holds()):
            assert driver.poll() is None, driver.communicate()[0][-3000:]
            assert time.monotonic() < end, f"not in time: {self.lines()[-3:]}"
            time.sleep(0.1)
        return found


def finished(driver: subprocess.Popen[str], code: int) -> str:
    out, _ = driver.communicate(timeout=DEADLINE)
    assert driver.returncode == code, out[-3000:]
    return out


@dataclass
class Episode:
    """What happened to one study, whose cluster grew, shrank, lost its head and was replaced."""

    study: Study
    grown_at: float  # moments, as the journal tells the time
    shrunk_at: float
    lost: int
    said: str
    cluster: Cluster


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Episode]:
    study = Study(tmp_path_factory.mktemp("nodes") / "study")
    study.pace(0.3)
    with cluster() as first:
        first.add()
        driver = study.run("study", first.address, TRIALS)
        study.until(lambda: [t for t in study.running() if t.reports], driver)
        study.pace("hold")
        grown_at = time.time()
        other = first.add(env={"AUTOTUNE_HARDWARE": "lent"})
        study.until(lambda: len(study.running()) == 2, driver)
        study.pace(0.3)
        study.until(lambda: [t for t in study.saved() if t.hardware.label], driver)
        study.pace("hold")
        (lost,) = (t.number for t in study.running() if t.hardware.label)
        shrunk_at = time.time()
        other.kill()
        study.pace(0.3)
        study.until(lambda: study.trials()[lost].attempts == 2, driver)
        study.until(study.saved, driver)
        first.head.kill()
        said = finished(driver, main.BROKEN)
    study.pace(0.02)
    with cluster(cpus=1) as second:
        resumed = study.command("resume", str(study.folder), "--ray-address", second.address)
        said += finished(resumed, main.DONE)
        yield Episode(study, grown_at, shrunk_at, lost, said, second)


def at_once(lines: list[dict[str, Any]], begin: float, end: float) -> int:
    """The most trials that groups had at one moment between two, by the journal's times."""
    placed: set[int] = set()
    most = 0
    for line in lines:
        at = datetime.fromisoformat(line["time"]).timestamp()
        if line["event"] == "started" and at < end:
            placed.add(line["trial"])
        if line["event"] in ("ended", "lost"):
            placed.discard(line["trial"])
        most = max(most, len(placed)) if begin <= at < end else most
    return most


def test_a_node_that_is_added_is_used_while_the_study_runs(episode: Episode) -> None:
    lines = episode.study.lines()
    assert at_once(lines, 0.0, episode.grown_at) == 1
    assert at_once(lines, episode.grown_at, episode.shrunk_at) == 2


def test_a_lost_node_costs_its_trial_what_came_after_the_checkpoint(episode: Episode) -> None:
    events = episode.study.events()
    by_node = [e for e in events if isinstance(e, Interrupted) and e.reason.startswith("node lost")]
    assert [e.trial for e in by_node] == [episode.lost]
    assert not by_node[0].broke, "no fault of the trial's, and no retry"
    own = [e for e in events if e.trial == episode.lost]
    saved = [e.checkpoint.step for e in own[: own.index(by_node[0])] if isinstance(e, Saved)]
    seed = episode.study.trials()[episode.lost].seed
    starts = [
        row.split()[4] for row in rows(episode) if row.startswith(f"{seed} ") and " start " in row
    ]
    assert [int(step) for step in starts[:2]] == [0, saved[-1]]


def test_nothing_is_lost_and_nothing_counted_twice(episode: Episode) -> None:
    events, trials = episode.study.events(), episode.study.trials()
    assert [e.trial for e in events if isinstance(e, Suggested)] == list(range(TRIALS))
    for trial in trials.values():
        assert (trial.state, trial.retries) == (State.REACHED, 0)
        ended = [e.reason for e in events if isinstance(e, Ended) and e.trial == trial.number]
        assert [reason for reason in ended if reason != "interrupted"] == ["target"]
        done = [r for r in trial.reports if r.metrics]
        assert [r.step for r in done] == list(range(100, done[-1].step + 1, 100))
        assert all(r.metrics["summed"] == r.step for r in done)


def test_a_lost_head_is_reported_and_the_study_goes_on_with_another(episode: Episode) -> None:
    assert "autotune: the study could not go on: Ray" in episode.said
    assert f"go on with: autotune resume {episode.study.folder}" in episode.said
    reasons = [line["reason"] for line in episode.study.lines() if line["event"] == "closed"]
    assert len(reasons) == 2
    assert reasons[1] == "done"
    events = episode.study.events()
    restarted = [e for e in events if isinstance(e, Interrupted) and e.reason == "driver restarted"]
    assert restarted, "something ran when the head was killed"


def test_trials_have_the_fingerprint_of_their_node(episode: Episode) -> None:
    trials = episode.study.trials()
    fingerprints = [e.hardware for e in episode.study.events() if isinstance(e, Started)]
    assert {h.label for h in fingerprints} == {"", "lent"}
    moved = trials[episode.lost].hardware
    assert "lent" in moved.before, "a part of its time was on another node"
    plain = [t for t in trials.values() if not t.hardware.before and not t.hardware.label]
    assert len({t.hardware for t in plain}) == 1
    best = read(episode.study.folder, Target(toys.METRIC, 0.95, limit=600)).best
    assert best is not None
    assert best.hardware == plain[0].hardware
    assert best.seconds == min(t.seconds for t in plain)


def rows(episode: Episode) -> list[str]:
    return rows_of(episode.study)


def rows_of(study: Study) -> list[str]:
    return study.log.read_text().splitlines()


def test_ranks_of_one_node_meet_on_loopback(episode: Episode) -> None:
    said = {row.partition("interfaces ")[2] for row in rows(episode) if "interfaces" in row}
    assert said == {"lo =lo"}


def test_ranks_of_two_nodes_meet_on_the_nodes_interface(episode: Episode, tmp_path: Path) -> None:
    """They would fit on the larger one, but are to be spread."""
    episode.cluster.add(cpus=2)
    study = Study(tmp_path / "study")
    study.pace(0.02)
    finished(study.run("apart", episode.cluster.address, 1), main.DONE)
    trial = study.trials()[0]
    assert trial.hardware.nodes == trial.hardware.num_workers == 2
    assert "network" in str(trial.hardware)
    own = hardware_probe.interface_of(episode.cluster.address.rpartition(":")[0])
    assert own
    said = [row.partition("interfaces ")[2] for row in study.log.read_text().splitlines()]
    assert [names for names in said if names] == [f"{own} ={own}"] * 2


@pytest.fixture
def apart() -> Iterator[Network]:
    with network() as made:
        yield made


def test_ranks_meet_on_the_cable_that_joins_their_machines(apart: Network, tmp_path: Path) -> None:
    """They do not fit on one. Each has another interface, listed first and with the default route,
    that goes nowhere."""
    study = Study(tmp_path / "study", apart.first.within)
    study.pace(0.02)
    with cluster(1, apart.first.within, node_ip_address=apart.first.address) as made:
        made.add(1, within=apart.second.within, node_ip_address=apart.second.address)
        finished(study.run("pair", made.address, 1), main.DONE)
    hardware = study.trials()[0].hardware
    assert hardware.nodes == hardware.num_workers == 2
    assert "network" in str(hardware)
    said = [row.partition("interfaces ")[2] for row in study.log.read_text().splitlines()]
    assert [names for names in said if names] == [f"{apart.cable} ={apart.cable}"] * 2


@pytest.fixture
def tight() -> Iterator[Cluster]:
    """A node on which Ray ends ranks once 5 GiB more are in use than now.

    Its own processes and the driver need about one of them; other tests may give some back. It is
    declared to have a GPU, which nobody touches.
    """
    memory = psutil.virtual_memory()
    if memory.available < 10 * 2**30:
        pytest.skip("needs 10 GiB of free memory")
    allowed = (memory.total - memory.available + 5 * 2**30) / memory.total
    limits = {"RAY_memory_usage_threshold": f"{allowed}", "RAY_memory_monitor_refresh_ms": "100"}
    with cluster(cpus=1, env=limits, num_gpus=1) as made:
        yield made


def test_each_rank_has_a_gpu_of_its_own_where_the_recipe_says_nothing(tmp_path: Path) -> None:
    """Also on nodes whose environment has Ray show every worker all GPUs. They are numbers only."""
    study = Study(tmp_path / "study")
    study.pace("hold")
    everything = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    declared = {"accelerator_type:T9": 1.0}
    with cluster(cpus=2, env=everything, num_gpus=2, resources=declared) as made:
        driver = study.run("study", made.address, 2)
        study.until(lambda: len(study.running()) == 2, driver)
        study.pace(0.05)
        said = finished(driver, main.DONE)
        kind = Study(tmp_path / "kind")
        finished(kind.run("of_a_kind", made.address, 1), main.DONE)
    assert {t.hardware.gpus_per_worker for t in kind.trials().values()} == {1}
    assert "GPUs: 1 a worker, as the cluster has 2 (--gpus-per-worker 0 for none)" in said
    sees = {row.partition(" sees ")[2] for row in rows_of(study) if " sees " in row}
    assert sees == {"0", "1"}
    assert {t.hardware.gpus_per_worker for t in study.trials().values()} == {1}
    scaling = json.loads((study.folder / "experiment.json").read_text())["scaling"]
    assert (scaling["cpus_per_worker"], scaling["gpus_per_worker"]) == (1, 1)


def test_what_ray_kills_for_its_memory_goes_on_with_half_the_microbatch(
    tight: Cluster, tmp_path: Path
) -> None:
    """Ray ends a rank before its node runs out of memory; nothing but its word tells of it.

    It may do so once more, for what else this machine does meanwhile; each time is half as much.
    """
    study = Study(tmp_path / "study")
    said = finished(study.run("swells", tight.address, 2), main.DONE)
    first, second = study.trials().values()
    lost = [e for e in study.events() if isinstance(e, Interrupted)]
    own, later = ([e for e in lost if e.trial == t.number] for t in (first, second))
    assert own
    assert {(e.reason, e.broke) for e in lost} == {("out of memory", False)}, said
    assert (first.state, first.retries, first.microbatch) == (State.REACHED, 0, 64 >> len(own))
    assert (second.state, second.retries) == (State.REACHED, 0)
    assert second.microbatch == 64 >> len(lost), "it begins with what fitted"
    assert second.attempts == 1 + len(later)
    starts = [row.rpartition(" start ")[2].split() for row in rows_of(study)]
    halves = [str(64 >> n) for n in range(1, len(lost) + 1)]
    assert [m for _, m in starts] == ["None", *halves[: len(own)], *halves[len(own) - 1 :]]
    assert int(starts[0][0]) == 0 < int(starts[1][0])


def test_the_microbatch_stays_where_a_gpu_is_what_it_fills(tight: Cluster, tmp_path: Path) -> None:
    """The node's memory is another matter, say of data loaders: a fault like any other."""
    study = Study(tmp_path / "study")
    finished(study.run("swells_beside_a_gpu", tight.address, 1), main.BROKEN)
    (trial,) = study.trials().values()
    assert (trial.state, trial.microbatch, trial.retries) == (State.FAILED, None, 1)
    assert "killed by Ray, as its node was running out of memory: rank 0" in trial.reason
