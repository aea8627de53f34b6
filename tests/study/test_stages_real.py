"""A search in two stages with real training, on two ranks of this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import autotune as at
from autotune.algorithms.plans.choice import chosen
from autotune.algorithms.plans.measured import measured
from autotune.algorithms.plans.probed import probed_plans
from autotune.algorithms.ranking.repeats import probes
from autotune.cli import main
from search_spaces import digits


@pytest.mark.slow
def test_two_ranks_probe_plans_and_search_in_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = digits.plans()
    made = replace(made, target=replace(made.target, limit=1.0))
    options = {"backend": "local", "max_concurrent_trials": 1, "tracking_uri": "off"}
    result = at.run(made, trials=2, out=tmp_path / "study", racing=0, **options)
    kinds = [t.kind for t in result.trials if t.repeats is None]
    own = probes(result.trials)
    assert kinds == ["baseline", *["probe"] * len(own), "trial"]
    usual = ["fp32", "bf16", "fp32"]  # and a second bf16, where this machine is faster with it
    assert [t.config["precision"] for t in own] in (usual, usual + usual[1:])
    assert {t.config["milestone"] for t in own} == {2560 // 8}
    for trial in own:
        found = measured(trial)
        assert found is not None, trial.reason
        assert found.setup_seconds > 0
        evaluated = [made.target.metric in report.metrics for report in trial.reports]
        assert evaluated == [False, True, True, *[False] * (len(evaluated) - 3)]  # set-up is first
        assert found.exposed is not None
        assert 0 <= found.exposed <= 1
    (factor,) = probed_plans(result.trials)
    assert dict(factor.changes) == {"precision": "bf16"}
    kept = chosen(result.trials)
    searched = next(t for t in result.trials if t.kind == "trial")
    assert searched.config["precision"] == ("fp32" if kept is None else "bf16")
    assert searched.config["milestone"] == 2560
    assert searched.config["data_parallel_shard_degree"] == 1
    capsys.readouterr()
    assert main.main(["status", str(tmp_path / "study")]) == main.DONE
    shown = capsys.readouterr().out
    assert f"after {len(own)} probes" in shown
    assert "precision bf16: " in shown
