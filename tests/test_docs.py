"""What the documents say is true: their Python runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from autotune import schedules
from autotune.comparison import Row
from autotune.controllers import CONTROLLERS, POPULATIONS
from autotune.controllers.learners import LEARNERS
from autotune.pruners import PRUNERS
from autotune.samplers.optuna import NAMES
from autotune.schedules import Cosine, stages

OTHERS = ("sequence_length", "weight_decay", "trust_coefficient", "label_smoothing")
DOCS = Path(__file__).parents[1] / "docs"


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("schedules.md"))))
def test_the_schedules_document_runs(number: int, tmp_path: Path) -> None:
    written = {"lr": Cosine(0.1, 0.0), "batch_size": stages((1, 64), (1, 128))}
    documents = {name: schedule.to_json() for name, schedule in written.items()}
    (tmp_path / "schedules.json").write_text(json.dumps(documents))
    check = (
        "\nimport sys\nheavy = {'ray', 'optuna', 'mlflow'} & set(sys.modules)\nassert not heavy\n"
    )
    script = tmp_path / "block.py"
    script.write_text(blocks("schedules.md")[number] + check)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_comparison_document_runs() -> None:
    names: dict[str, object] = {}
    exec(blocks("comparison.md")[0], names)
    row = names["row"]
    assert row.speedup_bound == ">="  # type: ignore[attr-defined]
    assert row.speedup_interval.low > 1.5  # type: ignore[attr-defined]


def test_every_figure_of_a_comparison_has_a_card() -> None:
    text = (DOCS / "comparison.md").read_text()
    for field in fields(Row):
        assert field.name == "candidate" or f"`{field.name}`" in text, field.name


def test_every_family_and_knob_has_a_card() -> None:
    text = (DOCS / "schedules.md").read_text()
    for kind in get_args(schedules.Schedule):
        (card,) = (line for line in text.splitlines() if line.startswith(f"| `{kind.__name__}("))
        _, *cells, _ = card.split(" |")
        assert kind is schedules.Constant or "arXiv" in cells[-1] or "DAWNBench" in cells[-1], card
    for knob in ("lr", "momentum", "beta1", "beta2", "batch_size", "image_size", *OTHERS):
        assert f"`{knob}`" in text, knob


def cards(document: str, section: str) -> dict[str, dict[str, str]]:
    """The rows of a section's tables of methods, those whose first column is the name."""
    text = (DOCS / document).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(" |")]
        cells[0] = cells[0].removeprefix("| ")
        if not line.startswith("| "):
            heads = [] if not line.startswith("|") else heads
        elif not heads:
            heads = cells
        elif heads[0] == "name":
            for method in re.findall(r"`([^`]+)`", cells[0]):
                assert method not in found, f"{method} has two cards"
                found[method] = dict(zip(heads, cells, strict=True))
    return found


METHODS = {
    ("search.md", "Samplers"): NAMES,
    ("search.md", "Pruners"): tuple(PRUNERS),
    ("controllers.md", "Cards"): (*CONTROLLERS, *(f'policy(learner="{n}")' for n in LEARNERS)),
    ("population.md", "Controllers"): POPULATIONS,
}


@pytest.mark.parametrize("place", METHODS, ids=" ".join)
def test_every_method_has_a_card(place: tuple[str, str]) -> None:
    """With its source, its cost in figures, when to take it and when not."""
    found = cards(*place)
    assert set(METHODS[place]) <= set(found)
    for method, row in found.items():
        card = {head.partition(" of ")[0]: cell for head, cell in row.items()}
        for head in ("what", "when", "when not", "cost", "source"):
            assert len(card[head]) > 3, f"{method}: {head}"
        assert re.search(r"\d", card["cost"]) or "as `" in card["cost"], f"{method}: a figure"
