"""What the documents say is true: their Python runs."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from autotune import schedules
from autotune.algorithms.controllers import CONTROLLERS, POPULATIONS
from autotune.algorithms.controllers.learners import LEARNERS
from autotune.algorithms.pruners.rules import PRUNERS
from autotune.algorithms.samplers.optuna_names import NAMES
from autotune.evaluation.comparison import Row
from autotune.schedules import Cosine, Linear, stages
from trainers import language, settings
from trainers.training import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"


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


def test_plain_pytorch_needs_ten_lines() -> None:
    (block,) = (block for block in blocks("schedules.md") if "import json, torch" in block)
    lines = [line for line in block.splitlines() if line.strip()]
    assert sum(not line.startswith(("model =", "optimizer =")) for line in lines) == 10


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


SOURCES = ("arXiv", "DAWNBench")


def table(heading: str) -> list[list[str]]:
    """The cells of every row of the table below a heading of schedules.md."""
    text = (DOCS / "schedules.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_every_family_has_a_card_with_its_source() -> None:
    cards = {cells[0].partition("(")[0].strip("`"): cells for cells in table("Cards: families")}
    assert cards.keys() == {kind.__name__ for kind in get_args(schedules.Schedule)}
    for kind in get_args(schedules.Schedule):
        call, *about, source = cards[kind.__name__]
        own = [field.name for field in fields(kind)]
        assert call.startswith(f"`{kind.__name__}({', '.join(own)})`"), call
        assert len(about) == 2
        assert all(about), call
        assert any(name in source for name in SOURCES), call


def schedulable(trainer: Any, known: dict[str, Any]) -> set[str]:
    """The keys of a trainer that take a schedule, found by giving them one."""
    found = set()
    for key in (*trainer.KEYS, *OPTIONS):
        for value in (0.5, 8, 64):
            for optimizer in ("sgd", "adamw", "lars"):
                config = {"lr": 0.1, **known, "optimizer": optimizer, key: Linear(value, value)}
                with contextlib.suppress(ValueError):
                    trainer.read_settings(config)
                    found.add(key)
    return found


def test_every_knob_that_takes_a_schedule_has_a_card_with_its_source() -> None:
    images = schedulable(settings, {"data": "digits", "model": "resnet8"})
    words = schedulable(language, {"text": "synthetic"})
    assert {"lr", "image_size", "momentum", "trust_coefficient"} <= images
    assert {"lr", "sequence_length", "beta1", "beta2"} <= words
    cards = {name: cells for cells in table("Cards: knobs") for name in cells[0].split("`")[1::2]}
    assert cards.keys() == images | words
    sourced = " ".join(cells[-1] for cells in table("Cards: families") + table("Cards: knobs"))
    for knob, (_, how, usual, source) in cards.items():
        assert how, knob
        assert usual, knob
        work = source.partition(";")[0]  # cited in full here, or in another card
        assert any(name in source for name in SOURCES) or f"{work}, arXiv" in sourced, knob


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
