"""Which parameters of a model are decayed, adapted, or matrices between its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from trainers.optimizers.buckets import Settings
from trainers.optimizers.rules import check_settings, unknown

Exclude = Literal["bias_and_norm", "none"] | Callable[[str, nn.Parameter], bool]
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
TABLES = (nn.Embedding, nn.EmbeddingBag)


def parameter_groups(
    model: nn.Module, *, weight_decay: float, exclude: Exclude = "bias_and_norm"
) -> list[Settings]:
    """Splits a model's parameters into decayed, adapted ones and excluded ones.

    The key `decays` tells schedules of weight decay which group is theirs.

    Args:
        weight_decay: of the first group, >= 0; the second has 0 and `adapt="never"`.
        exclude: "bias_and_norm" excludes biases, the parameters of normalisation layers and all
            that have at most one dimension; "none" excludes nothing; a function of a parameter's
            name and value decides itself.

    Raises:
        ValueError: the model has no parameters, or an argument is not one of the above.

    >>> [len(g["params"]) for g in parameter_groups(nn.Linear(2, 2), weight_decay=1e-4)]
    [1, 1]
    """
    check_settings({"weight_decay": weight_decay})
    if not callable(exclude) and exclude not in ("bias_and_norm", "none"):
        raise unknown("exclude", exclude, ("bias_and_norm", "none", "a function"))
    in_norms = _within(model, NORMS)

    def excluded(name: str, parameter: nn.Parameter) -> bool:
        if callable(exclude):
            return exclude(name, parameter)
        is_bias = name.rpartition(".")[2].startswith("bias")
        small = is_bias or parameter.ndim <= 1 or id(parameter) in in_norms
        return exclude == "bias_and_norm" and small

    split: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        split[bool(excluded(name, parameter))].append(parameter)
    if not any(split):
        raise ValueError(f"model must have parameters, {type(model).__name__} has none")
    decayed = {"params": split[0], "weight_decay": weight_decay, "decays": True}
    plain = {"params": split[1], "weight_decay": 0.0, "decays": False, "adapt": "never"}
    return [group for group in (decayed, plain) if group["params"]]


def matrix_groups(
    model: nn.Module, *, weight_decay: float, exclude: Exclude = "bias_and_norm"
) -> list[Settings]:
    """The groups of `parameter_groups`, with a group of its own for the matrices between layers.

    Its key `matrices` is True. It has the decayed weights of at least two dimensions, kernels of
    convolutions among them, but for embeddings, norms and the output layer. That is what the
    model's method `get_output_embeddings` returns, if it has one and that is not None; else a
    linear layer that shares the weights of an embedding; else the linear layer that was registered
    last. Its size is not looked at.

    Raises:
        ValueError: as `parameter_groups`.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    >>> [(g["matrices"], len(g["params"])) for g in matrix_groups(model, weight_decay=0.1)]
    [(True, 1), (False, 1), (False, 2)]
    """
    outside = _within(model, (*NORMS, *TABLES))
    outside |= {id(p) for layer in _outputs(model) for p in layer.parameters()}
    made: list[Settings] = []
    for group in parameter_groups(model, weight_decay=weight_decay, exclude=exclude):
        split: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for p in group["params"]:
            split[not (group["decays"] and p.ndim > 1 and id(p) not in outside)].append(p)
        made += [
            {**group, "params": params, "matrices": matrices}
            for matrices, params in zip((True, False), split, strict=True)
            if params
        ]
    return made


def _outputs(model: nn.Module) -> Sequence[nn.Module]:
    """The output layer: as the model says, or found by its place; nothing without linear layers."""
    methods = (getattr(m, "get_output_embeddings", None) for m in model.modules())
    named = [layer for method in methods if method is not None and (layer := method()) is not None]
    if named:
        return named[:1]
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    tables = _within(model, TABLES)
    return [m for m in linear if id(m.weight) in tables] or linear[-1:]


def _within(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> set[int]:
    """The identities of the parameters that modules of these kinds have themselves."""
    return {id(p) for m in model.modules() if isinstance(m, kinds) for p in m.parameters(False)}
