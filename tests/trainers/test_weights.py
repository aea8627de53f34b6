"""Weights of a local file: what is read of it, what begins anew, what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainers import image
from trainers.models.images import make_model
from trainers.models.weights import load, read

SHAPE = (1, 8, 8)
CONFIG: dict[str, Any] = {
    "data": "digits",
    "model": "resnet8",
    "width": 4,
    "lr": 0.0,
    "train_size": 32,
    "val_size": 32,
    "batch_size": 16,
}


def network(classes: int = 10, width: int = 4) -> nn.Module:
    return make_model("resnet8", SHAPE, classes, width, "batch")


def wrapped(state: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}


WAYS: dict[str, Any] = {
    "plain": lambda state: state,
    "state_dict, of DDP": wrapped,
    "model": lambda state: {"model": state, "args": {"lr": 0.1}},
    "best_model.pt": lambda state: {"weights": state, "model": "resnet8", "classes": ["a", "b"]},
    "without counts": lambda state: {k: v for k, v in state.items() if "num_batches" not in k},
    "with further outputs": lambda state: {**state, "AuxLogits.fc.weight": torch.zeros(3, 4)},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_model_begins_with_the_weights_of_a_file(way: Any, tmp_path: Path) -> None:
    first = network()
    torch.save(way(first.state_dict()), tmp_path / "weights.pt")
    second = network()
    load(second, str(tmp_path / "weights.pt"), 10)
    for name, value in second.state_dict().items():
        assert torch.equal(value, first.state_dict()[name]), name


def test_a_file_of_safetensors_is_read(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    state = network().state_dict()
    library.save_file(state, tmp_path / "weights.safetensors")
    found = read(str(tmp_path / "weights.safetensors"))
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_another_number_of_classes_has_a_new_output_layer(tmp_path: Path) -> None:
    first, second = network(10), network(7)
    before = {name: value.clone() for name, value in second.state_dict().items()}
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    load(second, str(tmp_path / "weights.pt"), 7)
    for name, value in second.state_dict().items():
        head = value.shape[:1] == (7,)
        assert torch.equal(value, before[name] if head else first.state_dict()[name]), name


class Touches:
    """What a pickled file could do."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("touched"),)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"nothing", "cannot be read: "),
        (pickle.dumps(Touches()), "cannot be read: "),
        ({"epoch": 3}, "has no state dictionary"),
        ([1, 2], "has no state dictionary"),
    ],
)
def test_other_files_are_refused_in_one_line(
    content: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError) as refused:
        read(str(path))
    assert str(refused.value).startswith(f"weights: {path} {says}")
    assert "\n" not in str(refused.value)
    assert not Path("touched").exists()


def test_weights_of_another_model_are_refused_with_what_differs(tmp_path: Path) -> None:
    path = str(tmp_path / "weights.pt")
    torch.save(network(width=8).state_dict(), path)
    with pytest.raises(ValueError, match=r"0.weight is 8x1x3x3 in the file and 4x1x3x3") as refused:
        load(network(), path, 10)
    assert str(refused.value).startswith(f"weights: {path} is of another model: ")
    assert " more)" in str(refused.value)
    assert "\n" not in str(refused.value)
    torch.save({"0.weight": torch.zeros(4, 1, 3, 3)}, path)
    with pytest.raises(ValueError, match=r"1.weight is missing in the file"):
        load(network(), path, 10)
    torch.save({**network().state_dict(), "more": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"another model: more is not in the model$"):
        load(network(), path, 10)


def test_a_training_begins_with_them_and_goes_on_without_the_file(
    tmp_path: Path, record: Any, same: Any
) -> None:
    """At a learning rate of 0 it keeps them."""
    torch.manual_seed(1)
    given = network().state_dict()
    path = tmp_path / "weights.pt"
    torch.save(given, path)
    config = {**CONFIG, "weights": str(path), "milestone": 16}
    trainer = image.train({**config, "seed": 5})
    next(trainer)
    state = next(trainer).state()
    found = {name: value.clone() for name, value in state["learner"]["model"].items()}
    names = [name for name, value in network().named_parameters()]
    assert all(torch.equal(found[name], given[name]) for name in names)
    path.unlink()
    rest = record({**config, "seed": 5, "state": state}, 1)
    assert all(torch.equal(rest["final"]["learner"]["model"][n], given[n]) for n in names)
    trainer.close()
    image.train.check({**config, "state": state})  # type: ignore[attr-defined]
    missing = f"^weights: there is no file {path}$"
    with pytest.raises(ValueError, match=missing):
        image.train.check(config)  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError, match=missing):
        record(config, 1)
