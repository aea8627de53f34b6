"""Models of libraries: their names, the libraries themselves, and that nothing is downloaded."""

from __future__ import annotations

import doctest
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune as at
from trainers import language, settings
from trainers.models import library
from trainers.models.images import make_model
from trainers.models.library_text import language_model
from trainers.models.weights import load

IMAGES: dict[str, Any] = {"data": "digits", "lr": 0.1}
TEXT: dict[str, Any] = {"text": "synthetic", "lr": 0.1}
SIZES = {"layers": 1, "width": 8, "heads": 1}


def test_examples() -> None:
    failed, tried = doctest.testmod(library)
    assert tried
    assert not failed


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "known", "name", "extra"),
    [
        (settings.read_settings, IMAGES, "timm:resnet18", "timm"),
        (settings.read_settings, IMAGES, "torchvision:resnet18", "torchvision"),
        (language.read_settings, TEXT, "transformers:gpt2", "transformers"),
    ],
)
def test_a_library_that_is_not_installed_is_one_line_with_its_extra(
    read: Any, known: dict[str, Any], name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == extra]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ValueError) as refused:
        read({**known, "model": name})
    assert str(refused.value) == (
        f"model {name!r} needs the library {extra}: pip install 'time-to-target[{extra}]'"
    )


def test_a_library_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchvision where it was built for another version of torch."""
    for module in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, module)
    (tmp_path / "torchvision").mkdir()
    broken = "raise RuntimeError('operator torchvision::nms\\ndoes not exist')"
    (tmp_path / "torchvision" / "__init__.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError) as refused:
        settings.read_settings({**IMAGES, "model": "torchvision:resnet18"})
    assert str(refused.value) == (
        "model 'torchvision:resnet18' needs the library torchvision, which cannot be imported with "
        f"torch {torch.__version__}: operator torchvision::nms does not exist"
    )


@pytest.mark.parametrize(
    "name",
    [
        "timm:test_resnet",
        "timm:test_resnet.r160_in1k",
        "torchvision:squeezenet1_1",
        "torchvision:googlenet",
        "transformers:gpt2",
        "transformers:llama",
    ],
)
def test_nothing_asks_for_a_connection(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new model, and one that begins with a file: sockets fail here, and none is used."""
    pytest.importorskip(name.partition(":")[0])
    asked: list[Any] = []

    def refuse(*given: Any, **named: Any) -> Any:
        asked.append(given)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    path = str(tmp_path / "weights.pt")
    if name.startswith("transformers:"):
        torch.save(language_model(name, 5, SIZES, 8).network.state_dict(), path)
        language_model(name, 5, SIZES, 8, path)
    else:
        made = make_model(name, (3, 32, 32), 5, None, "batch")
        torch.save(made.state_dict(), path)
        load(made, path, 5)
    assert not asked


def test_the_hub_does_not_answer_while_a_model_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    errors = pytest.importorskip("huggingface_hub.errors")
    asked: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: asked.append(given))
    before = hub.is_offline_mode()
    with library.offline():
        assert hub.is_offline_mode()
        with pytest.raises(errors.LocalEntryNotFoundError):
            hub.hf_hub_download("timm/resnet18.a1_in1k", "config.json", cache_dir=tmp_path)
    assert hub.is_offline_mode() == before
    assert not asked


def test_every_library_has_an_extra() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for name in (*library.IMAGES, *library.TEXT):
        needs = project["optional-dependencies"][name]
        assert any(need.startswith(f"{name}>=") for need in needs)
        assert any(need.startswith("safetensors>=") for need in needs)


@pytest.mark.parametrize(
    ("read", "known", "name", "says"),
    [
        (settings.read_settings, IMAGES, "tim:resnet18", "resnet50, timm:NAME, torchvision:NAME"),
        (settings.read_settings, IMAGES, "transformers:gpt2", "one of mlp, resnet8, resnet18"),
        (language.read_settings, TEXT, "gpt2", "one of gpt, transformers:NAME, got 'gpt2'"),
        (language.read_settings, TEXT, "timm:resnet18", "one of gpt, transformers:NAME"),
        (language.read_settings, TEXT, 3, "one of gpt, transformers:NAME, got 3"),
    ],
)
def test_an_unknown_library_is_one_line(
    read: Any, known: dict[str, Any], name: str, says: str
) -> None:
    with pytest.raises(ValueError) as refused:
        read({**known, "model": name})
    assert str(refused.value).startswith("model must be one of ")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("read", "known", "name", "nearest"),
    [
        (settings.read_settings, IMAGES, "timm:resnet18s", "timm:resnet18"),
        (settings.read_settings, IMAGES, "timm:resnet18.a1in1k", "timm:resnet18.a1_in1k"),
        (settings.read_settings, IMAGES, "timm:resnet18s.a1_in1k", "timm:resnet18"),
        (settings.read_settings, IMAGES, "torchvision:resnet_18", "torchvision:resnet18"),
        (settings.read_settings, IMAGES, "torchvision:fcn_resnet50", "torchvision:resnet50"),
        (language.read_settings, TEXT, "transformers:gpt-2", "transformers:gpt2"),
        (language.read_settings, TEXT, "transformers:Llama", "transformers:llama"),
    ],
)
def test_an_unknown_name_is_one_line_with_the_nearest(
    read: Any, known: dict[str, Any], name: str, nearest: str
) -> None:
    pytest.importorskip(name.partition(":")[0])
    with pytest.raises(ValueError) as refused:
        read({**known, "model": name})
    assert f"(the nearest is '{nearest}'), got {name!r}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["width", "norm"])
@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_keys_of_our_own_models_are_refused(key: str, name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    value = {"width": 8, "norm": "group"}[key]
    with pytest.raises(ValueError, match=f"^{key} is of mlp, resnet8, .*: {name!r} has its own$"):
        settings.read_settings({**IMAGES, "model": name, key: value})


def test_the_model_can_be_searched() -> None:
    """Each name with the keys that it takes."""
    names = ["resnet8", *(f"{n}:resnet18" for n in library.IMAGES if n in INSTALLED)]
    space = at.SearchSpace(
        {
            "data": at.Fixed("digits"),
            "model": at.Choice(names),
            "norm": at.Choice(["batch", "group"], when={"model": "resnet8"}),
            "lr": at.Float(0.01, 1.0, log=True),
        }
    )
    points = space.sample(20, seed=0)
    found = {settings.read_settings(space.config(point)).model for point in points}
    assert found == set(names)


def _is_installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


INSTALLED = [name for name in ("timm", "torchvision", "transformers") if _is_installed(name)]
