"""Fashion-MNIST with a multi-layer perceptron on two ranks: 10 to 20 seconds per trial."""

from __future__ import annotations

from autotune.space.search_space import Float, Int
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from search_spaces import _image

PROBLEM = _image.Problem(
    data="fashion_mnist",
    setting={"model": "mlp", "width": 256, "val_size": 5000, "milestone": 15_000},
    batch_size=Int(32, 1024, power_of_two=True, log=True),
    horizon=Float(2.0, 20.0, log=True),
    target=Target("val_accuracy", 0.885, limit=60.0),
    scaling=Scaling(num_workers=2, cpus_per_worker=1),
)


def sgd() -> Experiment:
    """SGD; the baseline is a cosine from 0.1."""
    return _image.sgd(PROBLEM, {**_image.SGD_BASELINE, "batch_size": 128, "horizon": 10.0})


def lars() -> Experiment:
    """LARS; the baseline is its paper's quadratic decay, at a larger batch."""
    return _image.lars(PROBLEM, {**_image.LARS_BASELINE, "batch_size": 512, "horizon": 10.0})


def lamb() -> Experiment:
    """LAMB; the baseline is its paper's linear decay, at a larger batch."""
    return _image.lamb(PROBLEM, {**_image.LAMB_BASELINE, "batch_size": 512, "horizon": 10.0})


def schedules() -> Experiment:
    """SGD with schedules of learning rate, batch size and momentum; `sgd`'s baseline."""
    baseline = {"batch_size.peak": 128, "horizon": 10.0}
    return _image.schedules(PROBLEM, {**_image.SCHEDULES_BASELINE, **baseline})
