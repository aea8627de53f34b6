"""Plans: what is refused, in one line that names the key, and what is said of each key."""

from __future__ import annotations

import doctest
import sys
import types
from dataclasses import fields
from typing import Any, get_args

import pytest
import torch

from autotune.algorithms.plans.parameters import probed_names
from autotune.schedules import Linear
from autotune.space.search_space import Choice, SearchSpace
from trainers import image, language, parallelize, plan, settings
from trainers.parallel import passes, stages, zero1
from trainers.parallel.ranks import Ranks
from trainers.plan import KNOBS, Plan, read_plan
from trainers.technique import Effect
from trainers.training import OPTIONS, TRAINING

IMAGES = {"data": "digits", "model": "resnet8", "lr": 0.1}
TEXT = {"text": "synthetic", "lr": 0.1}
SHARDED = {"data_parallel_shard_degree": -1}
ON_RANKS = "data_parallel_replicate_degree"
ON_PARTS = "data_parallel_shard_degree"
TENSOR, PIPELINE, CONTEXT = (
    f"{kind}_parallel_degree" for kind in ("tensor", "pipeline", "context")
)


def test_the_fields_of_a_plan_are_the_keys_of_the_techniques_with_their_defaults() -> None:
    assert {f.name: f.default for f in fields(Plan)} == {k: v.default for k, v in KNOBS.items()}
    assert read_plan({}) == Plan()
    assert str(Plan()) == "default"


@pytest.mark.parametrize("module", [plan, zero1, passes, stages])
def test_examples(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({ON_RANKS: 0}, f"{ON_RANKS} must be a whole number at least 1, or -1 for what is left"),
        ({ON_PARTS: 1.5}, f"{ON_PARTS} must be a whole number at least 1, or -1"),
        ({ON_RANKS: -1, ON_PARTS: -1}, f"only one of {ON_RANKS} and {ON_PARTS} may be -1"),
        ({**SHARDED, "bucket_cap_mb": 5}, f"bucket_cap_mb 5 needs {ON_PARTS} 1 and more than one"),
        ({ON_RANKS: 1, "static_graph": True}, "static_graph True needs data_parallel_shard_deg"),
        ({**SHARDED, "all_reduce_topology": "hierarchical"}, f"'hierarchical' needs {ON_PARTS} 1"),
        ({"all_reduce_topology": "ring"}, "one of flat, hierarchical, two_dimensional, got 'ring'"),
        ({"all_reduce_group_size": 2}, "all_reduce_group_size 2 needs all_reduce_topology 'hier"),
        ({"bucket_cap_mb": 0}, "bucket_cap_mb must be a number more than 0 and less than 1e+06"),
        ({"bucket_cap_mb": 1e300}, "more than 0 and less than 1e+06, got 1e+300"),
        ({"fsdp_reshard_after_forward": "never"}, f"'never' needs {ON_PARTS} other than 1"),
        ({"fsdp_reshard_after_forward": "nevr"}, "must be one of default, always, never"),
        ({"enable_cpu_offload": True}, f"enable_cpu_offload True needs {ON_PARTS} other than 1"),
        (
            {**SHARDED, "shard_optimizer_state": True},
            f"shard_optimizer_state True needs {ON_PARTS}",
        ),
        ({**SHARDED, "compile": True}, "takes precision fp32, tf32 or bf16, and compile False"),
        ({**SHARDED, "precision": "fp16"}, f"{ON_PARTS} -1 takes precision fp32, tf32 or bf16"),
        ({"selective_ac_option": 2}, "selective_ac_option 2 needs activation_checkpoint_mode 'sel"),
        ({"selective_ac_option": 0}, "must be 'op', or a whole number at least 1, got 0"),
        ({TENSOR: 0}, f"{TENSOR} must be a whole number at least 1, got 0"),
        ({"enable_sequence_parallel": True}, f"parallel True needs {TENSOR} other than 1"),
        ({"enable_loss_parallel": True}, f"parallel True needs {TENSOR} other than 1"),
        (
            {TENSOR: 2, "enable_loss_parallel": True, "label_smoothing": 0.1},
            "enable_loss_parallel True needs label_smoothing 0 all along",
        ),
        ({TENSOR: 2, "compile": True}, f"{TENSOR} 2 takes precision fp32, tf32 or bf16, and com"),
        (
            {TENSOR: 2, "optimizer_implementation": "fused"},
            "optimizer 'sgd' on parts of parameters must be one of auto, foreach, for-loop, got 'f",
        ),
        ({PIPELINE: 2, "precision": "fp16"}, f"{PIPELINE} 2 takes precision fp32, tf32 or bf16"),
        ({"pipeline_parallel_schedule": "GPipe"}, f"'GPipe' needs {PIPELINE} other than 1"),
        (
            {PIPELINE: 2, "pipeline_parallel_schedule": "DualPipe"},
            "pipeline_parallel_schedule must be one of 1F1B, GPipe, Interleaved1F1B, LoopedBFS, ",
        ),
        (
            {
                PIPELINE: 2,
                "pipeline_parallel_schedule": "ZBVZeroBubble",
                "activation_checkpoint_mode": "selective",
            },
            "selective_ac_option 'op' needs pipeline_parallel_schedule 1F1B, GPipe, Interleav",
        ),
        ({CONTEXT: 2, "compile": True}, f"{CONTEXT} 2 takes precision fp32, tf32 or bf16, and"),
        ({"activation_checkpoint_mode": "some"}, "must be one of none, full, selective"),
        (
            {"optimizer": "lars", "optimizer_implementation": "fused"},
            "optimizer_implementation of optimizer 'lars' must be one of auto, got 'fused'",
        ),
        (
            {**SHARDED, "optimizer_implementation": "fused"},
            "optimizer 'sgd' on parts of parameters must be one of auto, foreach, for-loop, got 'f",
        ),
        ({**SHARDED, "optimizer": "adafactor"}, "'adafactor' takes whole parameters, not data_par"),
        ({"optimizer": "adafactor", "beta1": 0.9}, "beta1 is given but optimizer 'adafactor'"),
        ({"optimizer_state_bits": 8}, "optimizer_state_bits 8 needs optimizer 'adamw', got 'sgd'"),
        ({"gradient_accumulation_steps": 0}, "must be a whole number at least 1, got 0"),
        ({"optimizer_state_bits": 4}, "optimizer_state_bits must be 32 or 8, got 4"),
        (
            {"optimizer": "adamw", "optimizer_state_bits": 8.0},
            "optimizer_state_bits must be 32 or 8, got 8.0",
        ),
        (
            {**SHARDED, "optimizer": "adamw", "optimizer_state_bits": 8},
            f"optimizer_state_bits 8 needs {ON_PARTS} 1 and shard_optimizer_state False",
        ),
        ({"compile": "unit"}, "compile must be True, False or 'units', got 'unit'"),
        (
            {"compile": "units", "activation_checkpoint_mode": "selective"},
            "selective_ac_option 'op' does not see the operations of compiled units",
        ),
        ({"bucket_cap": 5}, "did you mean 'bucket_cap_mb'"),
        ({"BUCKET_CAP_MB": 5}, "did you mean 'bucket_cap_mb'"),
    ],
)
@pytest.mark.parametrize(
    ("read", "known"), [(settings.read_settings, IMAGES), (language.read_settings, TEXT)]
)
def test_what_does_not_go_together_is_one_line(
    read: Any, known: dict[str, Any], keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError) as refused:
        read({**known, **keys})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({TENSOR: 3}, f"{TENSOR} must divide the heads, 4, got 3"),
        *(
            ({TENSOR: 2, "optimizer": name}, f"{TENSOR} must be 1 with optimizer {name!r}, whose")
            for name in ("muon", "adafactor")
        ),
        ({TENSOR: 2, ON_PARTS: 3}, f"{ON_PARTS} must divide the width, 128, where {TENSOR} is not"),
        ({PIPELINE: 5}, "layers must be at least 5, the stages of pipeline_parallel_schedule '1F"),
        (
            {PIPELINE: 4, "pipeline_parallel_schedule": "LoopedBFS"},
            f"layers must be at least 8, the stages of pipeline_parallel_schedule 'LoopedBFS' on "
            f"{PIPELINE} 4, got 4",
        ),
    ],
)
def test_a_language_model_that_cannot_be_divided_so_is_one_line(
    keys: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError) as refused:
        language.read_settings({**TEXT, **keys})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", [TENSOR, PIPELINE, CONTEXT])
def test_models_of_images_are_not_divided(key: str) -> None:
    says = f"{key} must be 1 in trainers.image, only the model 'gpt' of trainers.language can be"
    with pytest.raises(ValueError, match=says):
        settings.read_settings({**IMAGES, key: 2})


@pytest.mark.parametrize("key", ["shard_optimizer_state", PIPELINE])
def test_an_optimizer_that_changes_weights_between_steps_keeps_its_state_whole(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} must be .* with optimizer 'schedulefree_sgd'"):
        language.read_settings(
            {**TEXT, "optimizer": "schedulefree_sgd", key: True if "state" in key else 2}
        )


def test_states_of_8_bits_need_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**TEXT, "optimizer": "adamw", "optimizer_state_bits": 8}
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(ValueError, match=r"needs the library torchao: pip install 'time-to-targ"):
        language.read_settings(keys)
    monkeypatch.setitem(sys.modules, "torchao.optim", types.ModuleType("torchao.optim"))
    assert language.read_settings(keys).training.plan.optimizer_state_bits == 8
    with pytest.raises(ValueError, match="beta1 must be a number with optimizer_state_bits 8, no"):
        language.read_settings({**keys, "beta1": Linear(0.8, 0.9)})


def test_compiled_units_may_be_sharded_and_not_divided() -> None:
    made = language.read_settings({**TEXT, **SHARDED, "compile": "units"}).training
    assert (made.compile, made.plan.shards) == ("units", True)
    for key in (TENSOR, PIPELINE, CONTEXT):
        with pytest.raises(ValueError, match=f"^{key} 2 takes .* compile False, got fp32 and 'uni"):
            language.read_settings({**TEXT, key: 2, "compile": "units"})


def test_attention_of_a_library_s_model_is_its_own() -> None:
    pytest.importorskip("transformers")
    keys = {"model": "transformers:gpt2", "attention": "sliding_window", "attention_window": 4}
    with pytest.raises(ValueError, match=r"^attention must be 'full' with model 'transfo"):
        language.read_settings({**TEXT, **keys})
    with pytest.raises(ValueError, match=f"^{CONTEXT} must be 1 with model 'transformers:gpt2', o"):
        language.read_settings({**TEXT, "model": "transformers:gpt2", CONTEXT: 2})


def test_ranks_with_the_same_samples_divide_the_work_of_one_share() -> None:
    """Passes of a step, and so their samples, are those of a share."""
    keys = {"gradient_accumulation_steps": 4, "batch_size": 64}
    for more, microbatch in (({}, 4), ({TENSOR: 2}, 8), ({PIPELINE: 4}, 16), ({CONTEXT: 2}, 8)):
        made = language.read_settings({**TEXT, **keys, **more}).training
        assert made.on(made.plan.shares(4)).microbatch == microbatch


def test_images_channels_last_are_not_sharded() -> None:
    with pytest.raises(ValueError, match="channels_last must be False where the model is sharded"):
        settings.read_settings({**IMAGES, **SHARDED, "channels_last": True})


@pytest.mark.parametrize(
    ("degrees", "ranks", "found"),
    [
        ({}, 4, (4, 1)),
        (SHARDED, 4, (1, 4)),
        ({ON_PARTS: 2}, 4, (2, 2)),
        ({ON_RANKS: 2, ON_PARTS: -1}, 8, (2, 4)),
        ({ON_RANKS: 2}, 2, (2, 1)),
        (SHARDED, 1, (1, 1)),
        ({ON_PARTS: 3}, 4, None),
        ({ON_RANKS: 2}, 4, None),
        ({ON_PARTS: 2}, 1, None),
    ],
)
def test_degrees_times_degrees_are_the_ranks(
    degrees: dict[str, int], ranks: int, found: tuple[int, int] | None
) -> None:
    made = read_plan(degrees)
    if found is not None:
        assert tuple(made.degrees(ranks).values()) == (*found, *(1, 1, 1))
        return
    with pytest.raises(ValueError, match=f"must be the number of ranks, {ranks}$") as refused:
        made.degrees(ranks)
    assert all(key in str(refused.value) for key in (ON_RANKS, ON_PARTS))


def test_degrees_of_the_model_are_named_where_they_are_no_default() -> None:
    with pytest.raises(ValueError, match=f"{ON_PARTS} 1 x {TENSOR} 2 must be the number of ranks"):
        read_plan({TENSOR: 2}).degrees(3)
    assert [*read_plan({TENSOR: 2, ON_PARTS: -1}).degrees(8).values()] == [1, 4, 2, 1, 1]


def test_a_plan_for_other_ranks_is_refused_before_data_is_read() -> None:
    trainer = language.train({**TEXT, ON_RANKS: 2})
    with pytest.raises(ValueError, match="data_parallel_replicate_degree 2 x data_parallel_shard"):
        next(trainer)


def test_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    grouped = read_plan({"all_reduce_topology": "hierarchical", "all_reduce_group_size": 3})
    with pytest.raises(ValueError, match="all_reduce_group_size 3 must divide the 4 ranks"):
        parallelize.data_ranks(grouped, Ranks(0, 4, torch.device("cpu")))


def test_sharding_full_is_a_short_form() -> None:
    short = language.read_settings({**TEXT, "sharding": "full"}).training.plan
    assert short == language.read_settings({**TEXT, **SHARDED}).training.plan
    assert str(short) == "data_parallel_replicate_degree 1, data_parallel_shard_degree -1"
    with pytest.raises(ValueError, match="sharding 'full' chooses data_parallel_shard_degree"):
        language.read_settings({**TEXT, "sharding": "full", ON_PARTS: 2})


DATA = {
    *("data", "data_dir", "text", "tokens", "vocabulary", "train_size", "val_size", "val_share"),
    *("val_image_size", "val_sequence_length"),
}
ENDS = {"milestone", "max_epochs", "seed", "state"}


@pytest.mark.parametrize(("trainer", "own"), [(image, settings.OWN), (language, language.OWN)])
def test_every_key_says_what_it_changes_unless_it_is_the_problem(trainer: Any, own: Any) -> None:
    effects = trainer.train.effects
    assert set(effects.values()) <= set(get_args(Effect))
    assert {*own, *TRAINING, *OPTIONS, *KNOBS} - {*effects} == ({*own} & DATA) | ENDS
    assert {*KNOBS} <= {*trainer.train.memory_keys}
    choices = SearchSpace({"validation": Choice(("inline", "beside"))})
    assert not probed_names(choices, effects)  # no probe times an evaluation


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("model", ["resnet8", "resnet18"])
def test_recomputed_batch_statistics_count_once(mode: str, model: str) -> None:
    """The forward pass of a block runs twice; its running statistics are those of one."""
    states = []
    for plan_keys in ({}, {"activation_checkpoint_mode": mode}):
        config = {**IMAGES, "model": model, "width": 4, "train_size": 64, "batch_size": 32}
        trainer = image.train({**config, "val_size": 32, "milestone": 64, **plan_keys})
        next(trainer)
        state = next(trainer).state()["learner"]["model"]
        states.append({k: v.clone() for k, v in state.items()})
        trainer.close()
    plain, again = states
    assert plain.keys() == again.keys()
    assert all(torch.equal(value, again[key]) for key, value in plain.items())
