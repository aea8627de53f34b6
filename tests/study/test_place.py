"""Who says how many workers, cores and GPUs a trial has: options, recipe, study, cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sims import racing, simulate

import autotune as at
from autotune.storage import manifest as file
from autotune.storage.journal import JOURNAL
from autotune.study import place
from autotune.study.manifest import Manifest, manifest_scaling, resolved
from autotune.study.options import StudyOptions

SILENT, GIVEN = at.Scaling(), at.Scaling(4, 2, 0)
EARLIER = at.Scaling(2, 8, 1)


def scaled(
    scaling: at.Scaling, existing: at.Scaling | None = None, **options: Any
) -> tuple[Any, ...]:
    experiment = racing([1.0], scaling=scaling)
    before = existing and resolved(replace(experiment, scaling=existing), StudyOptions())
    made = place.scaled(experiment, StudyOptions(**options), before).scaling
    return made.num_workers, made.cpus_per_worker, made.gpus_per_worker


def test_what_nobody_says_is_left_to_the_cluster() -> None:
    assert scaled(SILENT) == (1, None, None)
    assert scaled(SILENT, workers=3) == (3, None, None)


def test_options_come_before_the_recipe() -> None:
    assert scaled(GIVEN) == (4, 2, 0)
    assert scaled(GIVEN, workers=1, cpus_per_worker=0.5, gpus_per_worker=2) == (1, 0.5, 2)


def test_a_study_keeps_the_gpus_that_it_was_given() -> None:
    """Also the none of a study that began when that was the default."""
    assert scaled(SILENT, EARLIER) == (1, 8, 1)
    assert scaled(SILENT, at.Scaling(1, 1, 0)) == (1, 1, 0)
    assert scaled(GIVEN, EARLIER) == (4, 2, 0)
    assert scaled(SILENT, EARLIER, gpus_per_worker=2) == (1, 8, 2)


def test_options_that_do_not_go_with_the_recipe_are_the_users_mistake() -> None:
    kind = at.Scaling(accelerator="H100")
    with pytest.raises(at.UserError, match="accelerator 'H100' needs GPUs, but gpus_per_worker is"):
        scaled(kind, gpus_per_worker=0)


def test_the_manifest_says_what_a_study_got_and_the_study_goes_on_with_it(fast_path: Path) -> None:
    simulate(racing([1.0, 2.0], scaling=SILENT), fast_path, 1)
    held = file.read(fast_path)
    assert held["scaling"] == {
        "num_workers": 1,
        "cpus_per_worker": 1,
        "gpus_per_worker": 0,
        "max_concurrent_trials": None,
    }
    file.write(fast_path, {**held, "scaling": {**held["scaling"], "gpus_per_worker": 1}})
    result = simulate(racing([1.0, 2.0], scaling=SILENT), fast_path, 2)
    assert len(result.trials) == 2
    assert Manifest.read(fast_path).scaling["gpus_per_worker"] == 1
    with pytest.raises(at.UserError, match=r"scaling.gpus_per_worker is 1.0 and not 2"):
        simulate(racing([1.0, 2.0], scaling=SILENT), fast_path, 2, gpus_per_worker=2)


def test_a_study_without_a_result_decides_its_gpus_again(fast_path: Path) -> None:
    """It goes on where nothing else differs, and what was decided before does not stay."""
    simulate(racing([1.0], scaling=SILENT), fast_path, 1)
    held = file.read(fast_path)
    file.write(fast_path, {**held, "scaling": {**held["scaling"], "gpus_per_worker": 1}})
    rows = (fast_path / JOURNAL).read_text().splitlines(keepends=True)
    (fast_path / JOURNAL).write_text("".join(rows[:3]))
    assert len(simulate(racing([1.0], scaling=SILENT), fast_path, 1).trials) == 1
    again = file.read(fast_path)
    assert again["scaling"]["gpus_per_worker"] == 0
    assert again["study_id"] == held["study_id"]
    assert (fast_path / JOURNAL).read_text().startswith("".join(rows[:3]))


def test_a_kind_of_gpu_is_in_the_manifest() -> None:
    kind = at.Scaling(gpus_per_worker=1, accelerator="H100")
    assert at.Scaling(**manifest_scaling(kind)) == kind


@pytest.mark.parametrize(
    ("nodes", "backend", "here"),
    [(("10.0.0.1",), "auto", True), (("10.0.0.1", "10.0.0.2"), "auto", False),
     (("10.0.0.2",), "ray", False), (("10.0.0.1", "10.0.0.2"), "local", True)],
)  # fmt: skip
def test_of_a_cluster_that_this_process_is_connected_to_the_nodes_count(
    nodes: tuple[str, ...], backend: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [{"NodeManagerAddress": address, "Alive": True} for address in nodes]
    every.append({"NodeManagerAddress": "10.0.0.9", "Alive": False})
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
    ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: every, util=util)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert place.is_here(StudyOptions(backend=backend)) is here
