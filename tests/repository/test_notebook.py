"""What a notebook shows of results and trials, and the example notebook itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import made_studies as made
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "digits.ipynb"
EVIL = "<script>alert(1)</script>"


def test_a_result_shows_the_fastest_and_what_is_confirmed() -> None:
    shown = made.confirmed()._repr_html_()
    first, second = shown.split("<tr>")[2:4]
    assert "<td style='text-align:left'>5.00 s</td>" in first
    assert "8.00 s (3 of 3)" in first
    assert "6.00 s" in second
    assert "2.58 times faster than the baseline (confirmed)" in shown
    assert "&gt; 4.00 s" in shown, "a stopped trial takes longer than this"


def test_many_trials_stay_a_small_table() -> None:
    shown = made.many(200)._repr_html_()
    assert shown.count("<tr>") == 11
    assert "and 190 more" in shown
    assert len(shown) < 8_000


def test_a_result_that_is_printed_is_one_line() -> None:
    result = made.study(made.trial(0, 5.0), made.trial(1, 4.0))
    assert str(result).endswith("2 trials, the best to val_accuracy 0.9: trial 1 in 4.00 s")
    assert str(made.study()).endswith("0 trials, the best to val_accuracy 0.9: none yet")
    assert len(repr(made.many(200))) < 500


def test_a_trial_shows_its_configuration() -> None:
    shown = made.trial(3, 5.0)._repr_html_()
    assert "<b>trial 3: 5 s</b>" in shown
    assert "cosine 0.4 -&gt; 0" in shown


@pytest.mark.parametrize("place", ["reason", "point", "metric"])
def test_names_are_only_text(place: str) -> None:
    point = {"lr": 0.1, EVIL: EVIL} if place == "point" else {"lr": 0.1}
    trial = made.trial(0, 5.0, point=point, reason=EVIL)
    result = made.study(trial)
    if place == "metric":
        result = replace(result, target=replace(made.TARGET, metric=EVIL))
    for shown in (trial._repr_html_(), result._repr_html_()):
        assert "<script" not in shown
    assert "&lt;script&gt;" in result._repr_html_()


def test_the_example_is_small_and_was_executed() -> None:
    assert NOTEBOOK.stat().st_size < 200_000
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    assert all(c["execution_count"] for c in cells)
    outputs = [o for c in cells for o in c["outputs"]]
    assert not any(o["output_type"] == "error" for o in outputs)
    assert any("text/html" in o.get("data", {}) for o in outputs)


def shortened() -> str:
    """Its code, with few trials and repeats, a target that is soon reached, and no MLflow."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    for here, shorter in (
        ("TRIALS, REPEATS = 8, 3", "TRIALS, REPEATS = 2, 1"),
        ('"val_accuracy", 0.95', '"val_accuracy", 0.5'),
        ('out="study"', 'out="study", tracking_uri="off"'),
    ):
        assert code.count(here) == 1, here
        code = code.replace(here, shorter)
    return code


def test_what_the_slow_test_shortens_is_there() -> None:
    compile(shortened(), "notebook", "exec")


@pytest.mark.slow
def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    exec(shortened(), names)
    assert (tmp_path / "comparison.html").stat().st_size > 1_000_000
    assert names["result"].confirmed
