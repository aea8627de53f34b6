"""How float32 products are computed is put back, whichever of torch's two ways a trial used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from autotune.backends.worker import float_precision
from autotune.backends.worker.float_precision import Precision

backends = torch.backends


@pytest.fixture
def clean() -> Iterator[Precision]:
    before = float_precision.read()
    yield before
    float_precision.put_back(before)


def newer() -> None:
    backends.cuda.matmul.fp32_precision = "tf32"


def newer_for_all() -> None:
    backends.fp32_precision = "tf32"  # type: ignore[attr-defined]


def newer_for_convolutions() -> None:
    backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]


def newer_for_the_host() -> None:
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16")


def older() -> None:
    backends.cuda.matmul.allow_tf32 = True
    backends.cudnn.allow_tf32 = False


def older_by_name() -> None:
    torch.set_float32_matmul_precision("medium")


def both() -> None:
    torch.set_float32_matmul_precision("high")
    backends.cuda.matmul.fp32_precision = "ieee"


@pytest.mark.parametrize(
    "change",
    [
        *(newer, newer_for_all, newer_for_convolutions, newer_for_the_host),
        *(older, older_by_name, both),
    ],
)
def test_what_a_trial_chose_is_put_back(clean: Precision, change: Callable[[], None]) -> None:
    change()
    float_precision.put_back(clean)
    assert float_precision.read() == clean, "and the older switches can be read again"
