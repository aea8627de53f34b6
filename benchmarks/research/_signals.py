"""Data of the farm's tasks: scikit-learn's digits, and generated one-dimensional signals.

The signals follow the description of MNIST-1D (Greydanus 2020, arXiv 2011.14439): ten templates of
twelve values, padded with zeros, scaled, sheared, shifted by up to six places, covered with
correlated noise, and resampled to forty values. Templates and amounts are this file's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

LENGTH = 40
_TEMPLATES = np.array(
    [
        [0, 3, 6, 8, 9, 9, 9, 9, 8, 6, 3, 0],
        [0, 1, 1, 2, 2, 9, 9, 2, 2, 1, 1, 0],
        [0, 6, 9, 7, 4, 1, 1, 3, 5, 7, 9, 9],
        [0, 6, 9, 5, 1, 5, 6, 1, 5, 9, 7, 2],
        [9, 7, 5, 3, 2, 2, 3, 9, 9, 2, 1, 0],
        [9, 9, 8, 2, 2, 6, 8, 8, 7, 5, 3, 1],
        [1, 4, 7, 9, 5, 3, 2, 4, 6, 6, 4, 1],
        [9, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
        [0, 4, 8, 8, 4, 1, 1, 5, 9, 9, 5, 0],
        [0, 5, 8, 9, 8, 5, 7, 7, 4, 3, 2, 2],
    ],
    dtype=float,
)


@dataclass(frozen=True)
class Data:
    """Training and validation samples, each as patches of numbers.

    Args:
        inputs, checks: float32, (samples, patches, numbers); one patch is the whole sample.
        targets, answers: int64, (samples,), classes from 0 to 9.
    """

    inputs: Tensor
    targets: Tensor
    checks: Tensor
    answers: Tensor


def signals(count: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Signals, (count, 40), and their classes; the same for the same seed.

    >>> x, y = signals(20, noise=1.0, seed=0)
    >>> x.shape, sorted(set(y.tolist())) == list(range(10))
    ((20, 40), True)
    """
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.arange(count) % 10)
    return np.stack([_signal(_TEMPLATES[own] / 9.0, noise, rng) for own in classes]), classes


def _signal(template: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    stretched = int(rng.integers(12, 25))
    places = np.linspace(0, len(template) - 1, stretched)
    shape = np.interp(places, np.arange(len(template)), template) * rng.uniform(0.7, 1.3)
    shape += rng.uniform(-0.4, 0.4) * np.linspace(-1, 1, stretched)
    signal = np.zeros(LENGTH)
    begin = (LENGTH - stretched) // 2 + int(rng.integers(-6, 7))
    signal[begin : begin + stretched] = shape
    return signal + noise * (0.25 * _smooth(rng) + 0.05 * rng.standard_normal(LENGTH))


def _smooth(rng: np.random.Generator) -> np.ndarray:
    """Noise whose neighbours are alike, of variance one."""
    kernel = np.exp(-0.5 * (np.arange(-4, 5) / 2.0) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    return np.convolve(rng.standard_normal(LENGTH + 8), kernel, mode="valid")


def patches(flat: np.ndarray, width: int, stride: int) -> np.ndarray:
    """Windows of `width` numbers, `stride` apart: what one convolution sees.

    >>> patches(np.arange(6.0)[None], 4, 2).tolist()
    [[[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]]]
    """
    return np.lib.stride_tricks.sliding_window_view(flat, width, axis=1)[:, ::stride]


@lru_cache
def load(name: str, train: int, noise: float, window: int) -> Data:
    """The data of a task: "digits" or "signals".

    Args:
        train: how many samples are trained on; the rest of the digits, or 1000 signals, validate.
        noise: of digits, the share of wrong labels in training; of signals, the noise's amount.
        window: numbers of a patch, half overlapping; 0 for whole samples.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        flat, classes = load_digits(return_X_y=True)
        order = np.random.default_rng(1).permutation(len(classes))
        flat, classes = flat[order] / 16.0, classes[order]
        answers = classes[1200:]
        classes = _mislabelled(classes[:train], noise)
        inputs, checks = flat[:train], flat[1200:]
    else:
        inputs, classes = signals(train, noise, seed=2)
        checks, answers = signals(1000, noise, seed=3)
    mean, spread = inputs.mean(), inputs.std()
    shaped = [_shaped((part - mean) / spread, window) for part in (inputs, checks)]
    return Data(shaped[0], torch.from_numpy(classes), shaped[1], torch.from_numpy(answers))


def _mislabelled(classes: np.ndarray, share: float) -> np.ndarray:
    rng = np.random.default_rng(4)
    wrong = rng.random(len(classes)) < share
    return np.where(wrong, rng.integers(0, 10, len(classes)), classes)


def _shaped(flat: np.ndarray, window: int) -> Tensor:
    parts = patches(flat, window, window // 2) if window else flat[:, None]
    return torch.from_numpy(np.ascontiguousarray(parts, dtype=np.float32))
