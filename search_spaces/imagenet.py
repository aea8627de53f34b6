"""ResNet-50 on ImageNet: large batches, LARS and progressive resizing, as in DAWNBench records.

`resnet50` and `plans` are for a cluster: they read `imagenet/train/CLASS/*` and
`imagenet/val/CLASS/*` in the data folder. `resnet50_synthetic` is the same space as `resnet50`'s
scaled down, on synthetic images, for any machine. The first trials are the record runs of
`search_spaces.published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.schedule_space import RULES
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from search_spaces.published import RECORDS
from trainers.data.images import data_folder, require
from trainers.image import train


@dataclass(frozen=True)
class Scale:
    """Factors that scale the record runs down to a machine.

    Args:
        batch: factor of batch sizes, and by the linear rule of learning rates.
        image: factor of image sizes.
    """

    batch: float
    image: float

    def space(self, fixed: Mapping[str, Any]) -> SearchSpace:
        """LARS with schedules of batch size, image size, momentum and learning rate."""
        least, most = (round(size * self.batch) for size in (4096, 32768))
        step = round(32 * self.image)
        shape: dict[str, Any] = {"family": Choice(("constant", "staircase"))}
        return SearchSpace(
            {
                **{key: Fixed(value) for key, value in fixed.items()},
                "optimizer": Fixed("lars"),
                "horizon": Float(16.0, 90.0, log=True),
                "batch_size": ScheduleSpace(
                    Int(least, most, power_of_two=True), **shape, knots=Int(1, 2), direction="free"
                ),
                "image_size": ScheduleSpace(
                    Int(3 * step, 9 * step, step=step), **shape, knots=Int(1, 3), direction="rising"
                ),
                "momentum": ScheduleSpace(
                    Float(0.9, 0.98),
                    family=Choice(("constant", "mirror")),
                    final=Float(0.9, 1.0),
                    mirrors="lr",
                ),
                "lr": ScheduleSpace(
                    Float(2.0 * self.batch, 40.0 * self.batch, log=True),
                    family=Choice(("polynomial", "linear", "one_cycle", "cosine", "piecewise")),
                    final=Float(0.001, 0.1, log=True),
                    warmup=Float(0.0, 0.5),
                    peak_at=Float(0.1, 0.5),
                    follows="batch_size",
                    rule=Choice(tuple(RULES)),
                ),
                "trust_coefficient": Float(2e-4, 5e-3, log=True),
                "trust_min": Choice((None, 1e-5)),
                "trust_max": Choice((None, 1.0)),
                "nesterov": Choice((False, True)),
                "weight_decay": Float(1e-5, 1e-3, log=True),
                "label_smoothing": Float(0.0, 0.15),
            }
        )

    def baseline(self) -> dict[str, Any]:
        """LARS as in its paper: constant sizes, a warm-up and a quadratic decay."""
        return {
            "horizon": 64.0,
            "batch_size.family": "constant",
            "batch_size.peak": round(8192 * self.batch),
            "image_size.family": "constant",
            "image_size.peak": 7 * round(32 * self.image),
            "momentum.family": "constant",
            "momentum.peak": 0.9,
            "lr.family": "polynomial",
            "lr.peak": 10.0 * self.batch,
            "lr.final": 0.001,
            "lr.warmup": 0.08,
            "trust_coefficient": 0.001,
            "trust_min": None,
            "trust_max": None,
            "nesterov": False,
            "weight_decay": 1e-4,
            "label_smoothing": 0.1,
        }


_SHARD, _TOPOLOGY = "data_parallel_shard_degree", "all_reduce_topology"
_COPIES: Mapping[str, tuple[Any, ...]] = {_SHARD: (1,)}
_PARTS: Mapping[str, tuple[Any, ...]] = {_SHARD: (2, 4, 8)}
_PLANS: Mapping[str, SpaceEntry] = {
    _SHARD: Choice((1, 2, 4, 8)),
    "channels_last": Choice((False, True), when=_COPIES),
    "bucket_cap_mb": Choice((None, 1, 5, 25, 100), when=_COPIES),
    "static_graph": Choice((False, True), when=_COPIES),
    _TOPOLOGY: Choice(("flat", "hierarchical", "two_dimensional"), when=_COPIES),
    "all_reduce_group_size": Choice((2, 4), when={_TOPOLOGY: ("hierarchical", "two_dimensional")}),
    "shard_optimizer_state": Choice((False, True), when=_COPIES),
    "fsdp_reshard_after_forward": Choice(("always", "never"), when=_PARTS),
    "fsdp_prefetch_units": Choice((1, 2), when=_PARTS),
    "activation_checkpoint_mode": Choice(("none", "full", "selective")),
    "selective_ac_option": Choice(("op", 2), when={"activation_checkpoint_mode": ("selective",)}),
}
"""How eight ranks divide the work, and what a step keeps."""
_PLAN: Mapping[str, Any] = {
    _SHARD: 1,
    "channels_last": True,
    "bucket_cap_mb": None,
    "static_graph": False,
    _TOPOLOGY: "flat",
    "shard_optimizer_state": False,
    "activation_checkpoint_mode": "none",
}
"""Copies of the model, as without a plan."""


def _experiment(
    name: str, scale: Scale, fixed: Mapping[str, Any], target: Target, scaling: Scaling
) -> Experiment:
    setting = {"model": "resnet50", **fixed}
    return Experiment(
        name=name,
        train=train,
        space=scale.space(setting),
        target=target,
        scaling=scaling,
        baseline=scale.baseline(),
        configs=[record.config(scale.batch, scale.image) for record in RECORDS.values()],
        canonical={"horizon": "epochs"},
    )


def resnet50() -> Experiment:
    """ImageNet on eight GPUs a trial; change `Scaling` for more.

    The target is MLPerf's 75.9 % top-1. Gradients of larger batches are accumulated
    over microbatches of 256 images a rank.

    Raises:
        FileNotFoundError: the folder of images is missing; one line that says where to put it.
    """
    return _on_gpus("imagenet-resnet50", {"channels_last": True})


def plans() -> Experiment:
    """`resnet50`, and how its eight GPUs divide the work; first `resnet50`'s own trials.

    Raises:
        FileNotFoundError: the folder of images is missing; one line that says where to put it.
    """
    found = _on_gpus("imagenet-plans", {})
    return replace(
        found,
        space=SearchSpace({**found.space.entries, **_PLANS}),
        baseline={**(found.baseline or {}), **_PLAN},
        configs=[{**config, **_PLAN} for config in found.configs],
    )


def _on_gpus(name: str, more: Mapping[str, Any]) -> Experiment:
    folder = data_folder(None).resolve() / "imagenet"
    made_up = "ImageNet (search_spaces.imagenet:resnet50_synthetic needs none)"
    for part in ("train", "val"):
        require(folder / part, made_up)
    fixed = {
        "data": "folder",
        "data_dir": str(folder),
        "augment": "crop+flip",
        "loader_workers": 8,
        "val_image_size": 288,
        "microbatch": 256,
        "precision": "bf16",
        **more,
    }
    target = Target("val_accuracy", 0.759, limit=4 * 3600.0)
    scaling = Scaling(num_workers=8, cpus_per_worker=8, gpus_per_worker=1)
    return _experiment(name, Scale(1.0, 1.0), fixed, target, scaling)


def resnet50_synthetic() -> Experiment:
    """A narrow ResNet-50 on 2,048 synthetic images, on one CPU core a trial.

    Batches are a 256th, images half of the record runs'.
    """
    fixed = {
        "data": "synthetic",
        "width": 8,
        "train_size": 2048,
        "val_size": 512,
        "val_image_size": 144,
        "milestone": 1024,
        "microbatch": 128,
    }
    target = Target("val_accuracy", 0.9, limit=300.0)
    return _experiment(
        "synthetic-resnet50", Scale(1 / 256, 0.5), fixed, target, Scaling(num_workers=1)
    )
