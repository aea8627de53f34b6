"""The retrieval trainer on one rank: what it learns, its data, and what it refuses.

On several ranks: `test_classes.py`.
"""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from autotune.schedules import Constant, Linear
from trainers import retrieval
from trainers.data.identities import made_up, of_folder
from trainers.parallel.ranks import Ranks
from trainers.plan import KNOBS
from trainers.recall import recall_at_1
from trainers.retrieval_settings import EFFECTS, KEYS, OWN, TAKEN, read_settings

ALONE = Ranks(0, 1, torch.device("cpu"))
GOOD: dict[str, Any] = {"data": "identities", "lr": 0.1}
SMALL: dict[str, Any] = {
    **GOOD,
    "identities": 60,
    "unseen": 20,
    "batch_size": 32,
    "milestone": 128,
    "width": 32,
    "features": 16,
    "margin_scale": 16.0,
    "margin_size": 0.2,
}


def trained(config: dict[str, Any], milestones: int) -> tuple[list[dict[str, float]], Any]:
    """The metrics of so many milestones, and the state at the last."""
    trainer = retrieval.train(config)
    metrics = []
    for _ in range(milestones):
        milestone = next(trainer)
        metrics.append(milestone.evaluate())
    state = copy.deepcopy(milestone.state())
    trainer.close()
    return metrics, state


def nearest(x: torch.Tensor, y: torch.Tensor) -> float:
    return recall_at_1(torch.nn.functional.normalize(x.flatten(1)), y, ALONE)


def test_it_learns_to_find_identities_that_it_has_not_seen() -> None:
    larger = {"identities": 300, "unseen": 100, "width": 128, "features": 32, "horizon": 5}
    steps = {"optimizer": "adamw", "lr": 0.01, "batch_size": 64, "milestone": 9000}
    (begun, ended), _ = trained({**SMALL, **larger, **steps}, 2)
    data = made_up(300, 100, 8, 2, 1.0, 8)
    pixels, truth = nearest(data.unseen, data.unseen_y), nearest(data.latent, data.unseen_y)
    assert begun["val_recall_at_1"] < pixels + 0.1
    assert pixels + 0.1 < ended["val_recall_at_1"] <= truth
    assert ended["val_accuracy"] > 0.3 > begun["val_accuracy"]
    assert ended["val_loss"] < begun["val_loss"]


def test_made_up_identities_are_repeatable_and_as_difficult_as_is_said() -> None:
    easy, same, hard = (made_up(10, 40, 6, 1, difficulty, 4) for difficulty in (0.5, 0.5, 2.0))
    assert torch.equal(easy.unseen, same.unseen)
    assert nearest(easy.latent, easy.unseen_y) > nearest(hard.latent, hard.unseen_y)
    assert nearest(easy.unseen, easy.unseen_y) > nearest(hard.unseen, hard.unseen_y)
    images = easy.known
    assert (len(images.train), len(images.val), len(easy.unseen)) == (50, 10, 240)
    assert not {*images.train_y.tolist()} & {*easy.unseen_y.tolist()}


@pytest.mark.parametrize(
    "options",
    [
        {"class_sample_rate": Linear(0.8, 0.3), "microbatch": 16},
        {"optimizer": "schedulefree_adamw", "lr": 0.01},
        {"precision": "fp16", "margin": "none", "margin_size": None},
        {"model": "resnet8", "width": 4, "augment": "crop+flip"},
    ],
    ids=["sampled", "schedule-free", "fp16", "resnet8"],
)
def test_a_restored_run_goes_on_bit_for_bit(options: dict[str, Any], same: Any) -> None:
    config = {**SMALL, "horizon": 1, **options}
    whole, ended = trained(config, 4)
    _, state = trained(config, 3)
    (_, rest), again = trained({**config, "state": state}, 2)
    assert same(again, ended)
    assert rest["val_recall_at_1"] == whole[-1]["val_recall_at_1"]
    assert rest["train_loss"] == whole[-1]["train_loss"]


def test_the_share_of_the_classes_follows_its_schedule() -> None:
    trainer = retrieval.train(
        {**SMALL, "batch_size": 8, "milestone": 8, "horizon": 0.1}
        | {"class_sample_rate": Linear(1.0, 0.5)}
    )
    learner = next(trainer).evaluate.__self__._learner  # type: ignore[attr-defined]
    head, seen = learner.model.classes, []
    choose = head._chosen
    head._chosen = lambda targets: seen.append(choose(targets)) or seen[-1]
    for _ in range(6):
        next(trainer)
    trainer.close()
    counts = [60 if chosen is None else len(chosen) for chosen in seen]
    rates = [1 - 0.5 * min(step * 8 / 36, 1) for step in range(6)]
    assert counts == [int(np.ceil(60 * rate)) for rate in rates]


def test_the_model_gives_features_of_length_1() -> None:
    config = {**SMALL, "model": "resnet8", "width": 4}
    _, state = trained(config, 2)
    model, example = retrieval.train.model(config, [state])  # type: ignore[attr-defined]
    found = model(torch.randn(3, *example.shape[1:]))
    assert found.shape == (3, 16)
    assert torch.allclose(found.norm(dim=1), torch.ones(3))


# --- a folder -------------------------------------------------------------------------------------


@pytest.fixture
def characters(tmp_path: Path) -> Path:
    """Seven classes of five drawings each."""
    random = np.random.default_rng(0)
    for number in range(7):
        folder = tmp_path / f"character{number:02}"
        folder.mkdir()
        drawn = random.random((16, 16)) < 0.3
        for i in range(5):
            noisy = drawn ^ (random.random((16, 16)) < 0.02)
            Image.fromarray(np.where(noisy, 0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path


def test_a_folder_is_divided_by_names_into_known_and_unseen_classes(characters: Path) -> None:
    train, val, unseen = of_folder(characters, 0.3, 0.2)
    assert (len(train.classes), len(unseen.classes)) == (5, 2)
    assert not {*train.classes} & {*unseen.classes}
    assert (len(train.paths), len(val.paths), len(unseen.paths)) == (20, 5, 10)
    assert train.classes == val.classes
    for files in (train, val, unseen):
        for path, label in zip(files.paths, files.labels, strict=True):
            assert Path(path).parent.name == files.classes[label]
    assert of_folder(characters, 0.3, 0.2) == (train, val, unseen)


def test_classes_may_be_in_folders_of_their_own_as_alphabets_have_them(
    characters: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As Omniglot has them: each alphabet has a `character01`, which is a class of its own."""
    nested = tmp_path_factory.mktemp("omniglot")
    for alphabet in ("Greek", "Latin"):
        shutil.copytree(characters, nested / alphabet)
    (nested / "Greek" / "_made").mkdir()
    (nested / "readme.txt").touch()
    os.symlink(nested, nested / "Latin" / "again", target_is_directory=True)
    parts = of_folder(nested, 0.3, 0.2)
    names = {*parts[0].classes, *parts[2].classes}
    assert names == {f"{a}/character{n:02}" for a in ("Greek", "Latin") for n in range(7)}
    for files in parts:
        for path, label in zip(files.paths, files.labels, strict=True):
            assert Path(path).parent == nested / files.classes[label]


def test_it_trains_on_a_folder(characters: Path) -> None:
    config = {
        "data": "folder",
        "data_dir": str(characters),
        "model": "resnet8",
        "width": 4,
        "lr": 0.05,
        "batch_size": 10,
        "milestone": 200,
        "image_size": 16,
        "loader_workers": 0,
        "margin": "none",
        "margin_scale": 8.0,
    }
    (begun, ended), state = trained(config, 2)
    assert ended["val_loss"] < begun["val_loss"]
    assert 0 <= ended["val_recall_at_1"] <= 1
    assert len(state["learner"]["model"]["classes.weight"]) == 6


def test_folders_that_cannot_be_divided_are_refused(characters: Path) -> None:
    for number in range(2, 7):
        for path in (characters / f"character{number:02}").iterdir():
            path.unlink()
        (characters / f"character{number:02}").rmdir()
    with pytest.raises(ValueError, match=r"must have at least three classes, .* got 2"):
        of_folder(characters, 0.3, 0.2)
    for number in range(3):
        folder = characters / f"single{number}"
        folder.mkdir()
        Image.new("L", (8, 8)).save(folder / "0.png")
    with pytest.raises(ValueError, match="needs at least two images to be found"):
        of_folder(characters, 0.9, 0.2)
    with pytest.raises(FileNotFoundError, match="is missing"):
        next(retrieval.train({"data": "folder", "data_dir": str(characters / "no"), "lr": 0.1}))


# --- settings -------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_papers() -> None:
    assert read_settings(GOOD).margin == ("arcface", 0.5, 64.0)
    assert read_settings({**GOOD, "margin": "CosFace"}).margin == ("cosface", 0.35, 64.0)
    assert read_settings({**GOOD, "margin": "none"}).margin.size == 0
    assert read_settings({**GOOD, "class_sample_rate": 1}).class_sample_rate == Constant(1)
    assert read_settings({**GOOD, "samples_per_identity": 2}).validated == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"margins": "none"}, "unknown key 'margins' .*did you mean 'margin'"),
        ({"image_sizes": 3}, "unknown key 'image_sizes' .*did you mean 'image_size'"),
        ({"data": "digits"}, "data must be one of identities, folder, got 'digits'"),
        ({"margin": "triplet"}, "margin must be one of none, arcface, cosface, got 'triplet'"),
        ({"margin_size": 1.5}, "margin_size must be a number at least 0 and less than 1.5"),
        ({"margin": "none", "margin_size": 0.1}, "margin_size 0.1 needs margin 'arcface' or"),
        ({"margin_scale": 0}, "margin_scale must be a number more than 0"),
        ({"class_sample_rate": 0}, "class_sample_rate must be a number more than 0 and at most 1"),
        ({"class_sample_rate": 1.01}, "more than 0 and at most 1, got 1.01"),
        (
            {"class_sample_rate": Linear(1.0, 0.0)},
            "at most 1, but it goes down to 0, got linear 1 -> 0",
        ),
        ({"data_dir": "x"}, "data_dir needs data 'folder', got data 'identities'"),
        ({"data": "folder", "unseen": 3}, "unseen needs data 'identities', got data 'folder'"),
        ({"optimizer": "lars"}, "optimizer must be one of sgd, .* got 'lars'"),
        ({"label_smoothing": 0.1}, "label_smoothing must be 0 in trainers.retrieval.* got 0.1"),
        ({"compile": True}, "compile must be False or 'units' .* got True"),
        ({"validation": "beside"}, "validation must be 'inline' .* got 'beside'"),
        ({"synchronization": "diloco"}, "synchronization must be 'every_step' .* got 'diloco'"),
        ({"gradient_compression": "fp16"}, "gradient_compression must be 'none' .* got 'fp16'"),
        ({"augment": "cutout"}, "augment must be without cutout"),
        ({"model": "resnet50", "image_size": 4}, "image_size must be at least 8, the total stride"),
        ({"prefetch_factor": 3}, "prefetch_factor 3 needs data 'folder'"),
        ({"data_parallel_shard_degree": 2}, "data_parallel_shard_degree must be 1 in trainers"),
        ({"shard_optimizer_state": True}, "shard_optimizer_state must be False in trainers.retr"),
        ({"tensor_parallel_degree": 2}, "tensor_parallel_degree must be 1 in trainers.retrieval"),
        ({"pipeline_parallel_degree": 2}, "pipeline_parallel_degree must be 1 in trainers"),
        ({"context_parallel_degree": 2}, "context_parallel_degree must be 1 in trainers"),
    ],
    ids=lambda given: " ".join(map(str, given)) if isinstance(given, dict) else "",
)
def test_what_is_not_allowed_is_said_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        retrieval.train.check({**GOOD, **given})  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


def test_every_key_of_a_search_has_an_effect() -> None:
    of_problem = {"data", "data_dir", "identities", "unseen", "samples_per_identity"}
    of_problem |= {"difficulty", "unseen_share", "val_share", "image_size"}
    assert {*OWN} - {*EFFECTS} == of_problem
    assert {*TAKEN} < {*KNOBS}
    assert {*retrieval.train.memory_keys} <= {*KEYS}  # type: ignore[attr-defined]
    assert retrieval.pass_size({**GOOD, "gradient_accumulation_steps": 4}, 2) == 16
