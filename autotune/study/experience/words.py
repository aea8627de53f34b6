"""Texts that mean the same to everybody.

A summary has these as they are, and checksums of all others.
"""

from __future__ import annotations

from autotune.space.schedule_space import FAMILIES, RULES

_OPTIMIZERS = """
    adadelta adafactor adagrad adam adamax adamw adan asgd lamb lars lbfgs lion muon nadam nadamw
    radam rmsprop rprop sgd sgdw shampoo soap sophia sparseadam
    schedulefree_adamw schedulefree_radam schedulefree_sgd
"""
_SCHEDULERS = """
    constant_with_warmup cosine_with_restarts cosine_with_min_lr reduce_lr_on_plateau
    exponential plateau warmup_stable_decay none
"""
_MODELS = "mlp cnn lstm gru transformer resnet8 resnet18 resnet34 resnet50"
_SETTINGS = """
    relu gelu silu swish tanh sigmoid elu selu leaky_relu mish softplus
    fp32 tf32 bf16 fp16 float32 bfloat16 float16
    batch_norm layer_norm group_norm rms_norm
"""
_WORDS = frozenset(
    [*FAMILIES, *RULES, *f"{_OPTIMIZERS} {_SCHEDULERS} {_MODELS} {_SETTINGS}".split()]
)


def is_common(text: str) -> bool:
    """Whether a text says nothing of who uses it: the name of a method, in any case.

    >>> is_common("AdamW"), is_common("cosine"), is_common("patients-2026")
    (True, True, False)
    """
    return text.lower() in _WORDS
