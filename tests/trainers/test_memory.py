"""The memory of a training is predicted without allocating it, and near what it then needs."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiers
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainers import image, language
from trainers.data.blank import images, texts
from trainers.memory import accumulate, bound, fused, low_bit, measure, predict, stand_ins

NEAR = 0.15
TEXT = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "text": "synthetic",
    "layers": 2,
    "width": 128,
    "heads": 4,
    "sequence_length": 128,
    "batch_size": 16,
    "train_size": 40_000,
    "val_size": 2048,
    "milestone": 4096,
}
IMAGES = {
    "lr": 0.1,
    "data": "digits",
    "model": "resnet8",
    "width": 32,
    "batch_size": 256,
    "milestone": 512,
}
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("text", {}),
    "recomputed": ("text", {"activation_checkpoint_mode": "full"}),
    "every second recomputed": (
        "text",
        {"activation_checkpoint_mode": "selective", "selective_ac_option": 2},
    ),
    "microbatches": ("text", {"microbatch": 4}),
    "adafactor": ("text", {"optimizer": "adafactor"}),
    "sliding window": ("text", {"attention": "sliding_window", "attention_window": 32}),
    "images": ("images", {}),
    "images recomputed": ("images", {"activation_checkpoint_mode": "full"}),
    "images, group norm, lars": ("images", {"norm": "group", "optimizer": "lars"}),
    "bfloat16": ("text", {"precision": "bf16"}),
}
QUICK = ("plain", "images recomputed")
TRAINERS = {"text": (language.train, TEXT), "images": (image.train, IMAGES)}


def predicted(task: str, plan: dict[str, Any], ranks: int = 1) -> int:
    """The prediction without the data, which NumPy allocates; made once for equal arguments."""
    return _predicted(task, (*sorted(plan.items()),), ranks, torch.cuda.is_available())


@cache
def _predicted(task: str, plan: tuple[tuple[str, Any], ...], ranks: int, on_gpu: bool) -> int:
    if task == "text":
        of_text = language.read_settings({**TEXT, **dict(plan)})
        made: Any = language._task(of_text, begins=False)
        shares = of_text.training.plan.shares(ranks)
        blank = texts(made.stream, of_text.val_sequence_length, shares)
        return predict.peak(of_text.training, made, blank, ranks)
    of_images = image.read_settings({**IMAGES, **dict(plan)})
    found = image._task(of_images, begins=False)
    return predict.peak(of_images.training, found, images(of_images, ranks), ranks)


@pytest.mark.parametrize("module", [accumulate, bound, fused, low_bit, measure])
def test_examples(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


@pytest.mark.parametrize(("task", "plan"), tiers.rows(ALONE, QUICK))
def test_what_is_predicted_is_what_is_needed(task: str, plan: dict[str, Any]) -> None:
    train, config = TRAINERS[task]
    needed = measure.peak(train, {**config, **plan})
    assert predicted(task, plan) == pytest.approx(needed, rel=NEAR)


ON_TWO: dict[str, dict[str, Any]] = {
    "replicas": {},
    "zero-1": {"shard_optimizer_state": True},
    "zero-2": {"data_parallel_shard_degree": 2, "fsdp_reshard_after_forward": "never"},
    "zero-3": {"data_parallel_shard_degree": 2, "fsdp_reshard_after_forward": "always"},
    "zero-3, recomputed": {"data_parallel_shard_degree": 2, "activation_checkpoint_mode": "full"},
    "tensor": {"tensor_parallel_degree": 2},
    "tensor, sequence, loss": {
        "tensor_parallel_degree": 2,
        "enable_sequence_parallel": True,
        "enable_loss_parallel": True,
    },
    "context": {"context_parallel_degree": 2},
    "context, zero-3": {"context_parallel_degree": 2, "data_parallel_shard_degree": -1},
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", ON_TWO.values(), ids=ON_TWO)
def test_so_it_is_on_several_ranks(
    plan: dict[str, Any], peaks_on_two_ranks: Callable[..., list[int]]
) -> None:
    needed = max(peaks_on_two_ranks({**TEXT, **plan}))
    assert predicted("text", plan, 2) == pytest.approx(needed, rel=NEAR)


@pytest.fixture(scope="module")
def peaks_on_two_ranks(on_two_ranks: Callable[..., Any]) -> Callable[..., list[int]]:
    """What two ranks need at the peak of a training of text."""

    def run(config: dict[str, Any]) -> list[int]:
        found = on_two_ranks(config, 1, peak=True)
        for rank in found:
            assert "error" not in rank, rank["error"]
        return [rank["peak"] for rank in found]

    return run


def test_a_gpus_kernels_need_less_than_a_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by hand: a layer keeps 17 times its input with kernels, and 21 times without."""
    wide = {"width": 64, "heads": 4, "layers": 6}
    on_cpu, own = predicted("text", wide), (F.rms_norm, F.scaled_dot_product_attention)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_gpu = predicted("text", wide)
    tokens = TEXT["batch_size"] * TEXT["sequence_length"]
    saved = 4 * wide["layers"] * tokens * 4 * wide["width"]  # bytes
    assert on_cpu - on_gpu == pytest.approx(predict.CALIBRATION * saved, rel=0.25)
    assert own == (F.rms_norm, F.scaled_dot_product_attention), "they are put back"


def test_kernels_of_a_gpu_are_called_as_torchs_own() -> None:
    """By place or by name, also with the defaults; what they leave to torch is torch's."""
    x, weight = torch.ones(2, 4, 8, 16), torch.ones(16)
    mask = torch.ones(8, 8, dtype=torch.bool)
    masked = F.scaled_dot_product_attention(x, x, x, mask)
    own = F.rms_norm, F.scaled_dot_product_attention
    with stand_ins.kernels_of_a_gpu():
        named: dict[str, Any] = {"query": x, "key": x, "value": x}
        for more in ({}, {"dropout_p": 0.0}, {"attn_mask": None, "enable_gqa": False}):
            found = F.scaled_dot_product_attention(**named, **more)
            assert not found.is_contiguous(), "as a GPU's kernel leaves it"
        assert torch.equal(F.scaled_dot_product_attention(**named, attn_mask=mask), masked)
        assert F.rms_norm(input=x, normalized_shape=(16,), weight=weight, eps=1e-6).shape == x.shape
        assert torch.equal(F.rms_norm(x, (16,)), own[0](x, (16,)))

    @stand_ins.kernels_of_a_gpu()
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert own == (F.rms_norm, F.scaled_dot_product_attention)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero-3", "tensor, sequence, loss", "context"])
def test_so_do_plans_of_several_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = predicted("text", ON_TWO[name], 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert 0.6 * on_cpu < predicted("text", ON_TWO[name], 2) < on_cpu


def test_the_peak_on_a_gpu_is_that_of_all_milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer forgets the allocator's peak at every milestone, to report its own."""
    now = {"peak": 0}

    class Milestone:
        def evaluate(self) -> None:
            now["peak"] += 1

    def train(config: dict[str, Any]) -> Any:
        for peak in config["peaks"]:
            torch.cuda.reset_peak_memory_stats()
            now["peak"] = max(now["peak"], peak)
            yield Milestone()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: now["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: now.update(peak=0))
    assert measure.peak(train, {"peaks": [9, 4]}) == 8
    assert measure.peak(train, {"peaks": [4, 9]}) == 8


def test_nothing_is_allocated_and_nothing_left_behind() -> None:
    def seen() -> tuple[Any, ...]:
        hooks = nn.modules.module._global_forward_pre_hooks
        return len(hooks), torch.UntypedStorage.resize_, torch.get_rng_state().sum().item()

    before = seen()
    huge = {**TEXT, "width": 8192, "heads": 64, "layers": 6, "batch_size": 512}
    found = language.memory(huge, 8)
    assert found > 100 * 2**30, "weights alone have 4.8 billion numbers of 4 bytes"
    assert seen() == before
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_shards_and_recomputation_need_less_and_further_passes_no_more() -> None:
    plain, alone = language.memory(TEXT, 4), language.memory(TEXT)
    parts = language.memory({**TEXT, "data_parallel_shard_degree": -1}, 4)
    again = language.memory({**TEXT, "activation_checkpoint_mode": "full"}, 4)
    assert parts < plain
    assert again < plain
    passes = language.memory({**TEXT, "gradient_accumulation_steps": 4})
    assert passes == language.memory({**TEXT, "microbatch": 4}) < alone
    sizes = [language.memory({**TEXT, "microbatch": 1, "batch_size": n}) for n in (16, 64)]
    assert sizes[0] == sizes[1]
    assert sizes[0] < alone


@pytest.mark.slow
def test_a_bound_is_above_what_is_predicted_and_answers_where_there_is_plenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for task, plan in ALONE.values():
        known = predicted(task, plan)  # which takes seconds, and is asked for twice
        with monkeypatch.context() as patch:
            patch.setattr(predict, "peak", lambda *given, known=known: known)
            memory = TRAINERS[task][0].memory
            config = {**TRAINERS[task][1], **plan}
            exact, plenty = memory(config), memory(config, 1, 2**50)
            assert exact < plenty < 2**50
            assert memory(config, 1, exact) == exact, "too little for the bound"


def test_a_plan_for_other_ranks_is_no_prediction() -> None:
    with pytest.raises(ValueError, match="must be the number of ranks, 2"):
        language.memory({**TEXT, "data_parallel_shard_degree": 4}, 2)


@pytest.mark.parametrize(
    "more",
    [
        {"pipeline_parallel_degree": 2},
        {"enable_cpu_offload": True, "data_parallel_shard_degree": 2},
        {"compile": True},
    ],
    ids=["ranks need different amounts", "not on the GPU", "fewer activations"],
)
def test_of_some_trainings_there_is_only_a_bound(more: dict[str, Any]) -> None:
    key = next(iter(more))
    with pytest.raises(ValueError, match=f"^{key} must be .* for a prediction of memory beyond"):
        language.memory({**TEXT, **more}, 2)
    assert 0 < language.memory({**TEXT, **more}, 2, 2**50) < 2**50


def test_where_a_rank_has_no_sequence_to_validate_others_have_one() -> None:
    few = {**TEXT, "val_size": 3 * 128}
    assert 0 < language.memory(few, 4, 2**50) < 2**50


def test_an_optimizer_that_changes_weights_between_steps_is_predicted_too() -> None:
    small = {**TEXT, "layers": 1, "width": 32}
    free = language.memory({**small, "optimizer": "schedulefree_adamw"})
    assert free == pytest.approx(language.memory(small), rel=0.1)


def test_sparse_attention_keeps_no_mask_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = {**TEXT, "attention": "sliding_window", "attention_window": 32}
    assert language._counted(language.read_settings(sparse)).attention == "sliding_window"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert language._counted(language.read_settings(sparse)) == language.read_settings(TEXT)
    narrow = language.read_settings({**sparse, "heads": 16})  # no kernel takes heads of 8
    assert language._counted(narrow) == narrow


def test_a_model_that_computes_with_its_numbers_cannot_be_predicted() -> None:
    class Counting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * int(x.sum())

    seen = stand_ins.Counted(stand_ins.CPU, tracker=nn.Module())
    seen.tracker.reset_mod_stats = lambda: None
    with FakeTensorMode(), pytest.raises(ValueError, match="its memory cannot be predicted"):
        seen.scores(Counting(2, 2), torch.zeros(1, 2))


def test_weights_to_begin_with_are_not_read(tmp_path: Path) -> None:
    began = {**TEXT, "weights": str(tmp_path / "missing.safetensors")}
    assert language.memory(began) == language.memory(TEXT)


@pytest.mark.slow
def test_the_memory_of_a_library_s_model_is_predicted_too() -> None:
    pytest.importorskip("transformers")
    config = {**TEXT, "model": "transformers:gpt2"}
    needed = measure.peak(language.train, config)
    assert predicted("text", config) == pytest.approx(needed, rel=NEAR)
    assert language.memory(config, 1, 2**50) < 2**50


@pytest.mark.slow
def test_states_of_8_bits_are_taken_off() -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    plain, low = (language.memory({**TEXT, "optimizer_state_bits": b}) for b in (32, 8))
    with torch.device("meta"):
        from trainers.models.gpt import GPT

        saved = low_bit.saved_bytes(8, GPT(65, 2, 128, 4))
    assert plain - low == pytest.approx(saved * predict.CALIBRATION, rel=0.05)


def test_the_private_tracker_is_as_it_was() -> None:
    """What of torch's private module is used; a version without it must be noticed here."""
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert FakeStore is not None
    tracker, before = MemTracker(), torch.zeros(1000)
    tracker.track_external(before)
    with tracker:
        more = torch.zeros(500)
        del more
        tracker.reset_mod_stats()
    (found,) = tracker.get_tracker_snapshot("peak").values()
    assert found["Total"] == 6000
