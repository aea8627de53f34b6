"""All keys of what copies of a model exchange: how much of their gradients, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainers.communication import compression, synchronization
from trainers.communication.synchronization import EVERY_STEP, Synchronization
from trainers.readers import Key
from trainers.technique import Knob

KNOBS: Mapping[str, Knob] = {**compression.KNOBS, **synchronization.KNOBS}
KEYS: Mapping[str, Key] = {**compression.KEYS, **synchronization.KEYS}
DEFAULTS: Mapping[str, Any] = {key: knob.default for key, knob in KNOBS.items()}
MEMORY_KEYS = (*compression.MEMORY_KEYS, *synchronization.MEMORY_KEYS)


def read(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Synchronization]:
    """The keys of compression, and the synchronization; `values` are checked by their readers.

    Raises:
        ValueError: keys that do not go together; one line that names them.
    """
    sent = {key: values[key] for key in compression.KEYS}
    found = synchronization.read({key: values[key] for key in synchronization.KEYS})
    kind = sent["gradient_compression"]
    if kind != "none" and not found.every_step:  # no gradients are exchanged
        needs = f"needs synchronization {EVERY_STEP!r}, got {found.kind!r}"
        raise ValueError(f"gradient_compression {kind!r} {needs}")
    return sent, found
