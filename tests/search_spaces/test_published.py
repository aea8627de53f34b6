"""The record runs' schedules, point by point; and against the published files where they are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.schedules import extremes, from_json
from autotune.schedules.plot import draw
from search_spaces.published import RECORDS, Record

ENTRIES = Path(__file__).parents[2].parent / "shared" / "data" / "dawnbench"
KNOBS = ("lr", "batch_size", "image_size", "momentum")

# Epoch (its middle is .5), then learning rate, batch size, image size and momentum there.
POINTS: dict[str, list[tuple[float, float, int, int, float]]] = {
    "fast.ai": [
        (0.0, 1.88, 8192, 128, 0.9),
        (3.0, 2.82, 8192, 128, 0.9),
        (6.0, 1.88, 16384, 128, 0.9),
        (15.9, 1.88, 16384, 128, 0.9),
        (16.0, 0.2506667, 8192, 224, 0.9),
        (19.0, 0.02506667, 24576, 224, 0.9),
        (31.0, 0.0376, 24576, 224, 0.9),
        (37.0, 0.0376, 16384, 288, 0.9),
        (40.0, 0.0376, 16384, 288, 0.9),
    ],
    "modelarts-mxnet": [
        (0.0, 1.92, 8192, 128, 0.9),
        (3.0, 2.88, 8192, 128, 0.9),
        (6.0, 3.84, 16384, 128, 0.9),
        (13.5, 3.84, 16384, 128, 0.9),
        (14.0, 3.84, 16384, 224, 0.9),
        (15.5, 2.88, 16384, 224, 0.9),
        (17.0, 1.92, 20480, 224, 0.9),
        (23.5, (1.92 + 0.0192) / 2, 20480, 224, 0.9),
        (28.0, 0.0192 + 1.9008 * (1 + math.cos(math.pi * 11 / 13)) / 2, 16384, 288, 0.9),
        (30.0, 0.0192, 16384, 288, 0.9),
    ],
    "modelarts-moxing": [
        (0.0, 28.0, 32768, 96, 0.90),
        (18.0, 0.2 + 27.8 * 0.5 * 0.5, 32768, 128, 0.96),
        (31.0, 0.2 + 27.8 * 5 / 36 * (1 + math.cos(math.pi * 31 / 36)) / 2, 32768, 224, math.nan),
        (35.0, 0.2 + 27.8 * 1 / 36 * (1 + math.cos(math.pi * 35 / 36)) / 2, 16384, 288, math.nan),
        (36.0, 0.2, 16384, 288, 0.98),
    ],
    "aiacc": [
        (0.0, 0.0, 32768, 96, 0.98),
        (7.0, 12.5, 32768, 96, 0.94),
        (13.0, 25.0 * 13 / 14, 32768, 128, math.nan),
        (14.0, 25.0, 32768, 128, 0.90),
        (21.0, 12.6, 32768, 128, 0.94),
        (24.0, 0.2 + 24.8 * 4 / 14, 32768, 224, math.nan),
        (27.0, 0.2 + 24.8 / 14, 16384, 288, math.nan),
        (28.0, 0.2, 16384, 288, 0.98),
    ],
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_published_point(name: str) -> None:
    record = RECORDS[name]
    for epoch, *expected in POINTS[name]:
        for knob, value in zip(KNOBS, expected, strict=True):
            found = getattr(record, knob)(epoch / record.epochs)
            assert math.isnan(value) or found == pytest.approx(value, rel=1e-9, abs=1e-12), knob


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_a_value_that_is_drawn_written_and_read(name: str) -> None:
    record = RECORDS[name]
    named = {knob: getattr(record, knob) for knob in KNOBS}
    assert {k: from_json(json.loads(json.dumps(s.to_json()))) for k, s in named.items()} == named
    assert len(draw(named).axes) == 4
    assert all(len(str(s)) <= 250 and not str(s).endswith("...") for s in named.values())


@pytest.mark.parametrize("name", RECORDS)
def test_scaled_down_it_keeps_its_shape(name: str) -> None:
    record = RECORDS[name]
    small = record.config(batch=1 / 256, image=0.5)
    assert extremes(small["batch_size"])[1] == extremes(record.batch_size)[1] / 256
    assert extremes(small["image_size"])[1] == 144
    assert small["lr"](0.3) == pytest.approx(record.lr(0.3) / 256)
    assert small["momentum"] == record.momentum


FILES = {
    "fast.ai": "fastai_resnet50_p3_16_machine_pytorch.json",
    "modelarts-mxnet": "huaweicloud_resnet50_modelarts_16_machine_mxnet121.json",
    "modelarts-moxing": "huaweicloud_resnet50_modelarts_16_machine_tensorflow18.json",
}


@pytest.mark.skipif(not ENTRIES.is_dir(), reason="the published entries are not there")
@pytest.mark.parametrize("name", FILES)
def test_sizes_are_those_of_the_published_file(name: str) -> None:
    entry: dict[str, Any] = json.loads((ENTRIES / FILES[name]).read_text())["misc"]
    record: Record = RECORDS[name]
    for knob, key, unit in (
        ("batch_size", "batchSize", "batch_size"),
        ("image_size", "imageSize", "image_size"),
    ):
        epoch = 0.0
        for stage in entry[key]:
            for inside in (0.0, 0.5 * stage["epochs"], stage["epochs"] - 1e-6):
                found = getattr(record, knob)((epoch + inside) / record.epochs)
                assert found == stage[unit], (knob, epoch + inside)
            epoch += stage["epochs"]
        assert epoch == record.epochs
    if name == "fast.ai":
        epoch = 0.0
        for stage in entry["schedule"]:
            rates = [stage["learning_rate"][0], stage["learning_rate"][-1]]
            for share in (0.0, 0.5, 0.99):
                at = (epoch + share * stage["epochs"]) / record.epochs
                assert record.lr(at) == pytest.approx(rates[0] + share * (rates[1] - rates[0]))
            epoch += stage["epochs"]
    assert entry.get("weightDecay") == record.settings["weight_decay"]
