"""Names that mean the same in every study, of parameters and of optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LR, EFFECTIVE_LR, MOMENTUM, OPTIMIZER = "lr", "effective_lr", "momentum", "optimizer"

SAME: Mapping[str, str] = {
    **dict.fromkeys(("learning_rate", "base_lr", "learning_rate_init", "eta", "step_size"), LR),
    **dict.fromkeys(("lr_peak", "max_lr", "peak_lr"), LR),
    **dict.fromkeys(("beta1", "beta_1", "adam_beta1"), MOMENTUM),
    **dict.fromkeys(("beta_2", "adam_beta2"), "beta2"),
    **dict.fromkeys(("bs", "batch", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("wd", "decay", "l2"), "weight_decay"),
    **dict.fromkeys(("warmup_ratio", "warmup_share", "lr.warmup"), "warmup"),
    **dict.fromkeys(("lr.family", "lr_scheduler", "lr_scheduler_type", "schedule"), "lr_family"),
    **dict.fromkeys(("num_epochs", "num_train_epochs", "n_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("trust_coefficient", "trust_coef"), "trust"),
    **dict.fromkeys(("smoothing", "label_smoothing_factor"), "label_smoothing"),
    **dict.fromkeys(("opt", "optim"), OPTIMIZER),
    **dict.fromkeys(("max_dropout", "dropout_rate", "p_dropout"), "dropout"),
    **dict.fromkeys(("n_layers", "layers", "depth"), "num_layers"),
    **dict.fromkeys(("max_units", "hidden_size", "hidden_dim", "n_units"), "width"),
}
"""Canonical names of the names that users and libraries give."""

AMBIGUOUS = frozenset(
    ("eta", "step_size", "depth", "layers", "batch", "decay", "l2", "schedule", "smoothing", "opt")
)
"""Names of `SAME` that models of other kinds have too, such as boosted trees."""

NEURAL = frozenset(
    (
        *(MOMENTUM, OPTIMIZER, "batch_size", "weight_decay", "warmup", "lr_family", "trust"),
        *("label_smoothing", "dropout", "beta2", "nesterov", "num_layers"),
    )
)
"""Canonical names that only the training of neural networks has."""


def canonical_name(name: str, said: Mapping[str, str] | None = None) -> str:
    """The canonical name of a parameter's flat name.

    `said` is what the experiment says of its own names (`Experiment(canonical=...)`).

    >>> canonical_name("learning_rate"), canonical_name("lr.peak"), canonical_name("my_knob")
    ('lr', 'lr', 'my_knob')
    """
    meant = said_name(name, said or {})
    return meant if meant is not None else SAME.get(spelled(name), spelled(name))


def is_neural(names: Iterable[str]) -> bool:
    """Whether canonical names are those of a neural network's training."""
    return any(name in NEURAL for name in names)


def spelled(name: str) -> str:
    """A flat name in lower case, without what a schedule's or an effective rate's adds to it."""
    return name.removesuffix(".peak").removesuffix(".effective").lower()


def said_name(name: str, said: Mapping[str, str]) -> str | None:
    """The canonical name that the experiment gives a parameter; None where it gives none."""
    for flat in (name, name.removesuffix(".peak"), name.removesuffix(".effective")):
        if flat in said:
            return SAME.get(said[flat], said[flat])
    return None


_SAME_OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "adamw"),
    "adamwschedulefree": "schedulefree_adamw",
    "sgdschedulefree": "schedulefree_sgd",
}
_TAKES: Mapping[str, str] = {"nadamw": "adamw", "adam": "adamw"}


def canonical_optimizer(value: Any) -> Any:
    """The canonical name of an optimizer, whatever a library or a path calls it.

    >>> canonical_optimizer("torch.optim.AdamW"), canonical_optimizer("SGD")
    ('adamw', 'sgd')
    """
    if not isinstance(value, str):
        return value
    plain = value.rpartition(".")[2].lower()
    return _SAME_OPTIMIZERS.get(plain, plain)


def takes_settings_of(own: Any, other: Any, decays: bool) -> bool:
    """Whether settings of the `other` optimizer are worth a trial with this one.

    NAdamW is AdamW with Nesterov's momentum. Adam is AdamW only without a weight decay, which it
    adds to the gradient.

    Args:
        decays: whether the settings have a weight decay.
    """
    return own == other or (_TAKES.get(own) == other and not (own == "adam" and decays))
