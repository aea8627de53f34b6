"""Names of models of other libraries, `LIBRARY:NAME`, and the libraries themselves.

| name | models | extra |
|---|---|---|
| `timm:NAME` | image models of `timm.list_models()` | `timm` |
| `torchvision:NAME` | image classifiers of `torchvision.models.list_models()` | `torchvision` |
| `transformers:NAME` | causal language models by `model_type`, as gpt2 or llama | `transformers` |

Nothing is downloaded: a model begins with new weights, or with those of a local file
(`trainers.models.weights`), and is made while the Hugging Face Hub is switched off. A library is
imported when one of its models is named.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import nn

from trainers.readers import NotAllowedError, Reader

IMAGES = ("timm", "torchvision")
TEXT = ("transformers",)


def named(name: str) -> bool:
    """Whether a model's name is one of a library's.

    >>> named("timm:resnet18"), named("resnet18")
    (True, False)
    """
    return ":" in name


def split(name: str) -> tuple[str, str]:
    """The library and its own name of a model.

    >>> split("timm:resnet18.a1_in1k")
    ('timm', 'resnet18.a1_in1k')
    """
    library, _, own = name.partition(":")
    return library, own


def imported(module: str, what: str, extra: str | None = None) -> ModuleType:
    """A library's module.

    Args:
        what: needs it, for the message.
        extra: of this project, that has the library; its own name by default.

    Raises:
        ValueError: it is not installed, which names the extra, or cannot be imported; one line.
    """
    library = module.partition(".")[0]
    try:
        importlib.import_module(library)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        install = f"pip install 'time-to-target[{extra or library}]'"
        why = "" if error.name == library else f" ({one_line(error)})"
        raise ValueError(f"{what} needs the library {library}: {install}{why}") from None
    except Exception as error:  # as where it was built for another version of torch
        raise ValueError(
            f"{what} needs the library {library}, which cannot be imported with torch "
            f"{torch.__version__}: {one_line(error)}"
        ) from None


@contextmanager
def offline() -> Iterator[None]:
    """While the Hugging Face Hub, where it is installed, answers nothing: no model is fetched."""
    if find_spec("huggingface_hub") is None:
        yield
        return
    hub: Any = importlib.import_module("huggingface_hub.constants")
    before, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before


def _timm(what: str) -> Sequence[str]:
    names: Sequence[str] = imported("timm", what).list_models()
    return names


def _torchvision(what: str) -> Sequence[str]:
    models = imported("torchvision.models", what)
    names: Sequence[str] = models.list_models(module=models)
    return names


def _transformers(what: str) -> Sequence[str]:
    auto = imported("transformers.models.auto.modeling_auto", what)
    return [*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]


NAMES: Mapping[str, Callable[[str], Sequence[str]]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
}
"""The names that a library has; the argument is what needs it, for the message."""


def model_of(own: Iterable[str], libraries: Iterable[str]) -> Reader:
    """Reads a model's name: one of our own in any case, or `LIBRARY:NAME`.

    A name of timm may have a tag of its weights (`resnet18.a1_in1k`), which chooses details of the
    model.
    """
    own, libraries = tuple(own), tuple(libraries)

    def read(value: Any) -> Any:
        if isinstance(value, str) and named(value):
            return _read(value, own, libraries)
        name = value.lower() if isinstance(value, str) else value
        if name not in own:
            raise NotAllowedError(_allowed(own, libraries))
        return name

    return read


def _allowed(own: Sequence[str], libraries: Sequence[str]) -> str:
    return "one of " + ", ".join((*own, *(f"{library}:NAME" for library in libraries)))


def _read(value: str, own: Sequence[str], libraries: Sequence[str]) -> str:
    library, name = split(value)
    library = library.lower()
    if library not in libraries:
        raise NotAllowedError(_allowed(own, libraries))
    what = f"model {value!r}"
    wanted, names = name, NAMES[library](what)
    if library == "timm":
        wanted, _, tag = name.partition(".")
        if wanted in names and tag:
            wanted, names = name, imported("timm", what).list_pretrained(f"{wanted}.*")
    if wanted not in names:
        near = difflib.get_close_matches(wanted.lower(), names, n=1, cutoff=0.5)
        hint = f" (the nearest is '{library}:{near[0]}')" if near else ""
        raise NotAllowedError(f"one of {len(names)} names of {library}{hint}")
    return f"{library}:{name}"


def without_dropout(model: nn.Module) -> nn.Module:
    """Set all dropout and stochastic depth of the model to 0, in place.

    A step then draws no random numbers: it depends on the weights and the batch only, so that a
    training goes on from a checkpoint as if it had not been interrupted, on any number of ranks.
    """
    for module in model.modules():
        drops = isinstance(module, nn.modules.dropout._DropoutNd)
        if drops or type(module).__name__ == "StochasticDepth":  # torchvision's
            module.p = 0.0  # type: ignore[assignment]
        for name, value in [*vars(module).items()]:
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def one_line(error: Exception) -> str:
    """What an error of a library says, shortened to a line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]}..."
