"""How a trial's ranks divide its work, as text: the keys of a plan in its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autotune.errors import UserError, shown
from autotune.trial.plain_text import plain_text
from autotune.trial.trainer import said
from autotune.trial.values import Config

DEFAULT = "default"  # the plan of a configuration that says nothing else


def plan_keys(train: Callable[..., Any]) -> Mapping[str, Any]:
    """The keys of a trainer's plans with their defaults (`train.plan_keys`); none if it has none.

    They say how the ranks of a trial divide its work and what a step keeps in memory.

    Raises:
        UserError: they are no dict.
    """
    found = said(train, "plan_keys", {})
    if not isinstance(found, Mapping):
        needed = "must be a dict of keys and their defaults"
        raise UserError(f"the trainer's plan_keys {needed} but got {shown(found)}")
    return dict(found)


def plan_text(config: Config, keys: Mapping[str, Any]) -> str:
    """The plan of a configuration: what differs from the defaults; empty where there are no keys.

    >>> keys = {"data_parallel_shard_degree": 1, "enable_cpu_offload": False}
    >>> plan_text({"lr": 0.1, "data_parallel_shard_degree": 2}, keys)
    'data_parallel_shard_degree 2'
    >>> plan_text({"lr": 0.1, "enable_cpu_offload": False}, keys), plan_text({"lr": 0.1}, {})
    ('default', '')
    """
    if not keys:
        return ""
    changed = [f"{k} {config[k]}" for k, v in keys.items() if k in config and config[k] != v]
    return plain_text(", ".join(changed)) or DEFAULT
