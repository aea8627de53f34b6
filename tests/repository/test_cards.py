"""Every method has a card, and cards agree with the code: names, settings, defaults, figures."""

from __future__ import annotations

import contextlib
import inspect
import re
from dataclasses import fields
from typing import Any, get_args

import pytest
from documents import ROOT, Card, cards, rows

from autotune import schedules
from autotune.algorithms.controllers import CONTROLLERS, FORKING, forking
from autotune.algorithms.pruners.rules import PRUNERS
from autotune.algorithms.samplers.optuna_names import NAMES
from autotune.evaluation.comparison import Row
from autotune.schedules import Linear
from autotune.space.schedule_space import FAMILIES
from trainers import click_settings, language, noise_scale, retrieval_settings, settings
from trainers.communication import compression, synchronization, wire
from trainers.models import library
from trainers.models.images import WIDTHS
from trainers.optimizers import adascale, make_optimizer
from trainers.parallel import classes
from trainers.plan import KNOBS
from trainers.readers import shown
from trainers.sparse.rules import SPARSE
from trainers.training import EFFECTS, OPTIONS, TAKES

SOURCES = ("arXiv", "DAWNBench")
SCHEDULES = "docs/cards/schedules.md"
METHODS = {
    "docs/cards/samplers.md": set(NAMES),
    "docs/cards/pruners.md": set(PRUNERS),
    "docs/cards/controllers.md": set(CONTROLLERS),
    "docs/cards/populations.md": set(FORKING),
    "docs/cards/optimizers.md": set(TAKES),
}
CARDS = {page: cards(page) for page in METHODS}
EACH = [(page, name) for page in METHODS for name in sorted(METHODS[page])]


@pytest.mark.parametrize("page", METHODS)
def test_every_method_has_a_card(page: str) -> None:
    assert CARDS[page].keys() == METHODS[page]


@pytest.mark.parametrize(("page", "name"), EACH, ids=[name for _, name in EACH])
def test_a_card_says_what_when_how_and_at_what_cost(page: str, name: str) -> None:
    card = CARDS[page][name]
    assert len(card.what) > 10
    assert list(card.points) == ["When", "Not when", "Settings", "Cost", "Source"]
    assert all(len(text.strip()) > 4 for text in card.points.values())
    cost = card.points["Cost"]
    assert re.search(r"\d", cost) or cost.startswith(("as `", "that of")), "a figure"


def named(card: Card) -> set[str]:
    """The settings that a card names."""
    return set(re.findall(r"`(\w+)(?:=[^`]*)?`", card.points["Settings"]))


@pytest.mark.parametrize("name", sorted(PRUNERS))
def test_a_pruners_card_has_its_settings_and_their_defaults(name: str) -> None:
    parameters = inspect.signature(PRUNERS[name]).parameters
    card = CARDS["docs/cards/pruners.md"][name]
    assert named(card) == set(parameters)
    defaults = dict(re.findall(r"`(\w+)=([^`]*)`", card.points["Settings"]))
    assert {n: eval(text) for n, text in defaults.items()} == {
        n: p.default for n, p in parameters.items()
    }


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_a_controllers_card_has_its_settings(name: str) -> None:
    card = CARDS["docs/cards/controllers.md"][name]
    assert set(inspect.signature(CONTROLLERS[name]).parameters) <= named(card)


@pytest.mark.parametrize("name", FORKING)
def test_the_card_of_a_controller_that_forks_has_its_settings(name: str) -> None:
    own = set(inspect.signature(forking(name)).parameters) - {"space", "target"}
    assert own <= named(CARDS["docs/cards/populations.md"][name])


@pytest.mark.parametrize("name", TAKES)
def test_an_optimizers_card_names_settings_that_it_takes(name: str) -> None:
    card = CARDS["docs/cards/optimizers.md"][name]
    common = {"lr", *inspect.signature(make_optimizer).parameters}
    assert named(card) <= {*TAKES[name], *common}


# --- plans ----------------------------------------------------------------------------------------


WITH_KEYS = {
    "docs/cards/parallel.md": KNOBS,
    "docs/cards/averaging.md": synchronization.KNOBS,
    "docs/cards/communication.md": compression.KNOBS,
    "docs/cards/compression.md": settings.COMPRESSION,
}


@pytest.mark.parametrize("page", WITH_KEYS)
def test_every_key_has_a_card_and_a_row_with_its_effect_and_default(page: str) -> None:
    found, table = cards(page), {row[0].strip("`"): row for row in rows(page, "key")}
    assert found.keys() == table.keys() == WITH_KEYS[page].keys()
    for key, knob in WITH_KEYS[page].items():
        points, default = found[key].points, knob.default
        assert list(points) == ["Effect", "Needs", "Refuses", "Cost", "Source"], key
        assert points["Effect"].startswith(knob.effect), key
        assert table[key][1] == knob.effect
        if page != "docs/cards/parallel.md":  # whose defaults are in `trainers/plan.py`
            assert table[key][2] == (shown(default) if callable(default) else str(default)), key
        assert any(known in points["Source"] for known in SOURCES), key


def test_every_compression_has_a_row() -> None:
    page = "docs/cards/communication.md"
    kinds = {name for row in rows(page, "compression") for name in re.findall(r"`(\w+)`", row[0])}
    assert kinds == {"none", *wire.HOOKS, *compression.EXCHANGES}


def test_every_key_of_input_has_a_card_and_a_row_with_its_effect() -> None:
    page = "docs/cards/models-and-input.md"
    found, table = cards(page), {row[0].strip("`"): row for row in rows(page, "key")}
    assert table.keys() == settings.INPUT.keys()
    assert found.keys() == {*settings.INPUT, "weights"}
    for key, knob in settings.INPUT.items():
        points = found[key].points
        assert list(points) == ["Effect", "Needs", "Refuses", "Cost", "Source"], key
        assert points["Effect"].startswith(knob.effect), key
        assert table[key][1] == knob.effect
        assert any(known in points["Source"] for known in SOURCES), key
    models = {name.partition(":")[0] for row in rows(page, "`model`") for name in row[0].split("`")}
    assert {*library.IMAGES, *library.TEXT, *WIDTHS, "gpt"} <= models


def test_what_a_step_keeps_and_computes_has_cards_with_its_effect() -> None:
    page = "docs/cards/memory.md"
    found, table = cards(page), {row[0].strip("`"): row for row in rows(page, "key")}
    assert {*found} | {"optimizer"} == {*table}
    for key, row in table.items():
        assert row[1] == language.train.effects[key], key  # type: ignore[attr-defined]
    for key, card in found.items():
        assert list(card.points) == ["Effect", "Needs", "Refuses", "Cost", "Source"], key
        assert card.points["Effect"].startswith(table[key][1]), key
        assert re.search(r"arXiv|doi", card.points["Source"]), key


def test_what_measures_the_noise_of_gradients_has_cards_with_its_effect() -> None:
    page = "docs/cards/gradient-noise.md"
    found, table = cards(page), {row[0].strip("`"): row for row in rows(page, "key")}
    keys = {**noise_scale.KEYS, **adascale.KEYS}
    assert found.keys() == table.keys() == keys.keys()
    for key, card in found.items():
        assert list(card.points) == ["Effect", "Needs", "Refuses", "Cost", "Source"], key
        assert card.points["Effect"].startswith(table[key][1]), key
        assert table[key][1] == EFFECTS[key], key
        assert table[key][2] == str(keys[key][0]), key
        assert "arXiv" in card.points["Source"], key


def test_what_is_done_with_many_classes_has_cards_with_its_effect() -> None:
    page = "docs/cards/classes.md"
    found, table = cards(page), {row[0].strip("`"): row for row in rows(page, "key")}
    assert found.keys() == table.keys() == {"classes", *classes.KNOBS}
    for key, card in found.items():
        effect = classes.KNOBS[key].effect if key in classes.KNOBS else "exact"
        assert list(card.points) == ["Effect", "Needs", "Refuses", "Cost", "Source"], key
        assert card.points["Effect"].startswith(effect), key
        assert table[key][1] == effect
        assert "arXiv" in card.points["Source"], key
    text = (ROOT / page).read_text().partition("| key |")[0]
    assert all(f"`{key}`" in text for key in retrieval_settings.TAKEN)


def test_clicks_have_a_row_for_every_key_and_a_card_for_every_way_of_updating() -> None:
    page = "docs/cards/clicks.md"
    found, table = cards(page), {row[0].strip("`"): row for row in rows(page, "key")}
    assert table.keys() == click_settings.KNOBS.keys()
    for key, knob in click_settings.KNOBS.items():
        _, effect, default, where = table[key]
        assert effect == knob.effect, key
        assert default.strip("`") == shown(knob.default).strip("'"), key
        assert where.replace("`", "") == (knob.when.text if knob.when else "everywhere"), key
    assert found.keys() == {*click_settings.UPDATES, *SPARSE, "reader_threads"} - {"sgd"}
    for key, card in found.items():
        assert list(card.points) == ["Effect", "Needs", "Refuses", "Cost", "Source"], key
        assert re.search(r"arXiv|github", card.points["Source"]), key


# --- schedules ------------------------------------------------------------------------------------


def test_every_family_has_a_card_with_its_source() -> None:
    found = {row[0].partition("(")[0].strip("`"): row for row in rows(SCHEDULES, "family")}
    assert found.keys() == {kind.__name__ for kind in get_args(schedules.Schedule)}
    for kind in get_args(schedules.Schedule):
        call, *about, source = found[kind.__name__]
        own = [field.name for field in fields(kind)]
        assert call.startswith(f"`{kind.__name__}({', '.join(own)})`"), call
        assert len(about) == 2
        assert all(about), call
        assert any(name in source for name in SOURCES), call


def test_the_families_that_can_be_searched_are_all() -> None:
    text = (ROOT / SCHEDULES).read_text()
    listed = text.partition("Families that a `ScheduleSpace` can search:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(FAMILIES)


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


def test_every_setting_that_takes_a_schedule_has_a_card_with_its_source() -> None:
    images = schedulable(
        settings, {"data": "digits", "model": "resnet8", "pruning": "unstructured"}
    )
    words = schedulable(language, {"text": "synthetic"})
    assert {"lr", "image_size", "momentum", "trust_coefficient"} <= images
    assert {"lr", "sequence_length", "beta1", "beta2"} <= words
    many = schedulable(retrieval_settings, {"data": "identities"})
    assert {"class_sample_rate", "lr", "batch_size"} <= many
    table = rows(SCHEDULES, "setting")
    found = {name: cells for cells in table for name in cells[0].split("`")[1::2]}
    assert found.keys() == images | words | many
    sourced = " ".join(cells[-1] for cells in rows(SCHEDULES, "family") + table)
    for name, (_, how, usual, source) in found.items():
        assert how, name
        assert usual, name
        work = source.partition(";")[0]  # cited in full here, or in another card
        assert any(known in source for known in SOURCES) or f"{work}, arXiv" in sourced, name


# --- statistics -----------------------------------------------------------------------------------


def test_every_figure_of_a_comparison_has_a_card() -> None:
    text = (ROOT / "docs/cards/statistics.md").read_text()
    for field in fields(Row):
        assert field.name == "candidate" or f"`{field.name}`" in text, field.name
