"""scikit-learn's 8x8 digits with a small residual network on two ranks: seconds per trial."""

from __future__ import annotations

from autotune.experiment import Experiment, Scaling
from autotune.space import Float, Int
from autotune.trial import Target
from search_spaces import _image

PROBLEM = _image.Problem(
    data="digits",
    setting={"model": "resnet8", "width": 32, "augment": "crop", "milestone": 1536},
    batch_size=Int(16, 512, power_of_two=True, log=True),
    horizon=Float(8.0, 80.0, log=True),
    target=Target("val_accuracy", 0.985, limit=30.0),
    scaling=Scaling(num_workers=2, cpus_per_worker=1),
)
CAREFUL = {"lr.warmup": 0.05, "lr.final": 0.001, "batch_size": 64, "horizon": 60.0}
LARGE_BATCH = {"lr.warmup": 0.1, "lr.final": 0.001, "batch_size": 256, "horizon": 50.0}


def sgd() -> Experiment:
    """SGD; the baseline is the usual cosine from 0.1 with more epochs than it needs."""
    return _image.sgd(
        PROBLEM,
        baseline={
            **CAREFUL,
            "lr.family": "cosine",
            "lr.peak": 0.1,
            "momentum": 0.9,
            "weight_decay": 5e-4,
        },
    )


def lars() -> Experiment:
    """LARS at a large batch; the baseline is its paper's quadratic decay."""
    return _image.lars(
        PROBLEM,
        baseline={
            **LARGE_BATCH,
            "lr.family": "polynomial",
            "lr.peak": 10.0,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "trust_coefficient": 0.001,
            "nesterov": False,
        },
    )


def lamb() -> Experiment:
    """LAMB at a large batch; the baseline is its paper's linear decay."""
    return _image.lamb(
        PROBLEM,
        baseline={
            **LARGE_BATCH,
            "lr.family": "linear",
            "lr.peak": 0.02,
            "beta1": 0.9,
            "beta2": 0.999,
            "weight_decay": 0.01,
            "trust_max": None,
        },
    )
