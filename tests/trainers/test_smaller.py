"""Smaller models: masks and their schedule, rounded weights, a teacher, and what is exported."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_only
from torch import Tensor, nn

from autotune.schedules import Linear
from trainers import classifier, image
from trainers.compression import quantize
from trainers.compression.applied import Compression, smaller_of
from trainers.compression.distill import Teacher
from trainers.compression.exported import megabytes, small
from trainers.compression.packed import packed, unpacked
from trainers.compression.prune import Ramp, prunable
from trainers.compression.smallest import removed
from trainers.compression.structure import fit, groups_of, without_masked
from trainers.compression.teacher import read_teacher
from trainers.data.images import read_images
from trainers.models.images import make_model
from trainers.settings import read_settings

CPU = torch.device("cpu")
DIGITS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "width": 24,
    "lr": 0.1,
    "batch_size": 64,
    "train_size": 512,
    "val_size": 256,
    "milestone": 256,
    "horizon": 2.0,
    "seed": 3,
}
RESNET: dict[str, Any] = {"model": "resnet8", "width": 8}
PRUNED: dict[str, Any] = {"pruning": "unstructured", "sparsity": 0.8}
CHANNELS: dict[str, Any] = {"pruning": "structured", "sparsity": 0.5}


def run(config: dict[str, Any], count: int) -> list[Any]:
    """At each of so many milestones: metrics, a copy of the state, and what is measured."""
    milestones, found = image.train(config), []
    for _ in range(count):
        here = next(milestones)
        found.append((here.evaluate(), copied(here.state()), here.measure))
        if len(found) == count:
            measured = here.measure()
    milestones.close()
    return [*found, measured]


def copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(one == other)


def learned(config: dict[str, Any], extra: dict[str, Any]) -> Any:
    return run({**config, **extra}, 3)[2]


# --- pruning --------------------------------------------------------------------------------------


def test_the_ramp_is_that_of_zhu_and_gupta() -> None:
    for progress in (0.0, 0.1, 0.25, 0.5, 0.7):
        at = min(progress, 0.5)
        expected = 0.8 + (0.0 - 0.8) * (1 - at / 0.5) ** 3  # their equation 1, from 0 to 0.8
        assert Ramp(0.8, 0.5)(progress) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("kind", ["unstructured", "structured"])
def test_as_much_is_removed_as_the_schedule_says_and_the_smallest(kind: str, scope: str) -> None:
    torch.manual_seed(0)
    model = make_model("mlp", (1, 8, 8), 10, 20, "batch")
    own = {**read_settings(DIGITS).compression, "pruning": kind, "pruning_scope": scope}
    smaller = smaller_of(model, {**own, "sparsity": Linear(0.0, 0.9)})
    made = Compression(model, smaller, None, lambda weights, masks: {})
    scored = smaller.prunable.scored if smaller is not None and smaller.prunable else []
    before: dict[str, Tensor] = {}
    for progress in (0.0, 0.1, 0.5, 0.55, 1.0):
        values = dict(model.named_parameters())
        if kind == "structured":
            scores = {n: values[n].detach().square().mean(1).sqrt() for n in scored}
        else:
            scores = {n: values[n].detach().abs().flatten() for n in scored}
        made.at(progress)
        kept = {n: made.masks[n].flatten() for n in scored}
        parts = [scored] if scope == "global" else [[n] for n in scored]
        for names in parts:
            score, mask = (torch.cat([x[n] for n in names]) for x in (scores, kept))
            assert int((~mask).sum()) == removed(len(mask), Linear(0.0, 0.9)(progress))
            free = mask & ~torch.cat([scores[n] == scores[n].max() for n in names])
            assert mask.all() or not free.any() or score[free].min() >= score[~mask].max()
        assert all(not (mask & ~before.get(n, mask)).any() for n, mask in kept.items())
        before = kept
        for name, mask in made.masks.items():
            assert (values[name] * ~mask == 0).all()


@pytest.mark.parametrize(
    "extra",
    [PRUNED, {**CHANNELS, **RESNET}, {**PRUNED, "optimizer": "adamw", "pruning_scope": "global"}],
    ids=["weights", "channels", "global"],
)
def test_masks_hold_at_every_step_and_through_resume_bit_for_bit(extra: dict[str, Any]) -> None:
    config = {**DIGITS, **extra, "milestone": 64, "sparsity_ramp": 0.6}
    whole = run(config, 8)
    for metrics, state, _ in whole[1:-1]:
        weights, masks = state["learner"]["model"], state["learner"]["compression"]["masks"]
        assert masks
        assert all((weights[name] * ~mask == 0).all() for name, mask in masks.items())
        done = Ramp(config["sparsity"], 0.6)(metrics["progress"] - 64 / 1024)  # of the last step
        assert metrics["sparsity"] == pytest.approx(done, abs=0.1)
    again = run({**config, "state": whole[3][1]}, 5)
    for part in ("model", "compression"):
        assert same(again[0][1]["learner"][part], whole[3][1]["learner"][part])
    assert same(again[4][1], whole[7][1])
    pruning = ("pruning", "sparsity", "sparsity_ramp", "pruning_scope")
    fork = {k: v for k, v in config.items() if k not in pruning} | {"state": whole[7][1]}
    masks = whole[7][1]["learner"]["compression"]["masks"]
    _, free, _ = run(fork, 2)[1]
    assert not free["learner"]["compression"]["masks"]
    assert any((free["learner"]["model"][name] * ~mask != 0).any() for name, mask in masks.items())


@pytest.mark.parametrize("network", [{}, RESNET], ids=["mlp", "resnet8"])
def test_without_its_channels_a_model_computes_what_the_masked_one_does(
    network: dict[str, Any],
) -> None:
    _, state, _ = learned(DIGITS, {**network, **CHANNELS})
    weights, masks = state["learner"]["model"], state["learner"]["compression"]["masks"]
    shape, name, width = (1, 8, 8), {**DIGITS, **network}["model"], {**DIGITS, **network}["width"]
    made = [make_model(name, shape, 10, width, "batch") for _ in range(2)]
    groups = groups_of(made[0])
    assert groups
    made[0].load_state_dict(weights)
    fit(made[1], without_masked(weights, groups, masks))
    count = [sum(p.numel() for p in one.parameters()) for one in made]
    assert count[1] < 0.8 * count[0]
    x = torch.randn(16, *shape)
    with torch.no_grad():
        out = [one.eval()(x) for one in made]
    torch.testing.assert_close(out[1], out[0], rtol=1e-5, atol=1e-5)


def test_of_bottlenecks_both_inner_layers_lose_channels() -> None:
    torch.manual_seed(0)
    model = make_model("resnet50", (1, 8, 8), 10, 4, "batch")
    found = prunable(model, "structured", "layer")
    assert len(found.groups) == 2 * 16
    masks = found.masks(dict(model.named_parameters()), 0.5)
    weights = {n: v * masks[n] if n in masks else v for n, v in model.state_dict().items()}
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        model.load_state_dict(weights)
        other = make_model("resnet50", (1, 8, 8), 10, 4, "batch")
        small_one = fit(other, without_masked(weights, found.groups, masks)).eval()
        torch.testing.assert_close(small_one(x), model.eval()(x), rtol=1e-5, atol=1e-5)


# --- quantisation ---------------------------------------------------------------------------------


def test_rounding_is_within_half_a_step_of_each_channel() -> None:
    weight = torch.randn(5, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    codes, scale = quantize.quantized(weight)
    assert codes.dtype is torch.int8
    assert codes.shape == weight.shape
    apart = (quantize.dequantized(codes, scale) - weight).abs().flatten(1).amax(1)
    assert (apart <= scale / 2 * (1 + 1e-5)).all()
    assert scale.tolist() == pytest.approx((weight.abs().flatten(1).amax(1) / 127.5).tolist())


@pytest.mark.parametrize("extra", [{}, {**RESNET, "channels_last": True}], ids=["mlp", "resnet8"])
def test_what_qat_evaluates_is_what_the_converted_model_computes(extra: dict[str, Any]) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    torch.manual_seed(0)
    config = {**DIGITS, **extra}
    model = make_model(config["model"], (1, 8, 8), 10, config["width"], "batch")
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    quantize.prepare(model)
    assert model.state_dict().keys() == plain.keys()
    x = torch.randn(32, 1, 8, 8)
    own = read_settings({**config, "quantization": "qat"}).compression
    converted = make_model(config["model"], (1, 8, 8), 10, config["width"], "batch")
    fit(converted, unpacked(small(plain, smaller_of(converted, own), {})))
    with torch.no_grad():
        fake, real = model.eval()(x), converted.eval()(x)
    torch.testing.assert_close(real, fake, rtol=1e-5, atol=1e-5)
    F.cross_entropy(model(x), torch.zeros(32, dtype=torch.int64)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_a_training_with_qat_exports_what_it_evaluates(tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    check_exported({"quantization": "qat", **CHANNELS}, tmp_path)


# --- the teacher ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_the_gradient_of_distillation_is_that_of_its_formula(how: str) -> None:
    torch.manual_seed(0)
    a, t, n, smoothing = 0.7, 3.0, 6, 0.1
    out = torch.randn(n, 5, dtype=torch.float32, requires_grad=True)
    scores, y = torch.randn(n, 5), torch.randint(0, 5, (n,))
    Teacher(nn.Identity(), a, t).loss(out, y, scores, smoothing, how).backward()
    wide, p = out.detach().double(), (scores.double() / t).softmax(1)
    labels = F.one_hot(y, 5).double() * (1 - smoothing) + smoothing / 5
    of_labels, of_teacher = wide.softmax(1) - labels, ((wide / t).softmax(1) - p) / t
    expected = (1 - a) * of_labels + a * t**2 * of_teacher
    expected = expected / n if how == "mean" else expected
    assert out.grad is not None
    torch.testing.assert_close(out.grad.double(), expected, rtol=1e-5, atol=1e-7)


def test_a_student_that_follows_its_teacher_alone_comes_to_agree_with_it(tmp_path: Path) -> None:
    _, state, _ = learned({**DIGITS, "lr": 0.2}, {})
    file = tmp_path / "teacher.pt"
    torch.save(image.saved(DIGITS, [state]), file)
    taught = {**DIGITS, "seed": 5, "teacher": str(file), "distill_weight": 1.0}
    image.check(taught)
    data = read_images("digits", None, CPU)
    teacher = classifier.load(file).model
    apart = []
    for _, own, _ in run({**taught, "horizon": 8.0, "distill_temperature": 1.0}, 9)[:-1:8]:
        student, _ = image.trained(DIGITS, [own])
        with torch.no_grad():
            p, q = (m(data.val_x).log_softmax(1) for m in (teacher, student))
            apart.append(float(F.kl_div(q, p, log_target=True, reduction="batchmean")))
    assert apart[1] < 0.3 * apart[0]
    other = tmp_path / "other.pt"
    torch.save({**torch.load(file, weights_only=True), "std": [9.0]}, other)
    for config, says in (
        ({"teacher": str(tmp_path / "none.pt")}, "teacher must be a file of a trained model or"),
        ({"teacher": "models:/digits/latest"}, "or models:/NAME/VERSION, got 'models:/digits/la"),
        ({"teacher": __file__}, "holds no classifier"),
        (
            {"teacher": str(other)},
            r"deviation 9, and the data's the mean [\d.]+ and deviation [\d.]+$",
        ),
        ({"data": "synthetic", "teacher": str(file)}, "it has 1 channels, and the data 3"),
        (
            {**RESNET, "teacher": str(file), "image_size": Linear(4.0, 8.0)},
            "teacher.pt: it does not take images of 1x4x4$",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            next(image.train({**DIGITS, **config}))
    with pytest.raises(ValueError, match=r"teacher.pt: its class 1 is 1, and the data's pear$"):
        read_teacher(str(file), 1, [8], 10, CPU, 0.5, 2.0, ["0", "pear", *"23456789"])


# --- what is exported -----------------------------------------------------------------------------


def check_exported(extra: dict[str, Any], folder: Path) -> None:
    """The file computes what was evaluated, has the measured size, and its model is `trained`'s."""
    config = {**DIGITS, **extra}
    *_, (metrics, state, _), measured = run(config, 5)
    content = image.saved(config, [state])
    assert content is not None
    with (folder / "model.pt").open("wb") as file:
        torch.save(content, file)
    assert measured["model_megabytes"] == (folder / "model.pt").stat().st_size / 1e6
    assert 0 < measured["latency_ms"] < math.inf
    found, data = classifier.load(folder / "model.pt"), read_images("digits", None, CPU)
    model, _ = image.trained(config, [state])
    with torch.no_grad():
        scores = found.model(data.val_x[:256])
        assert torch.equal(scores, model(data.val_x[:256]))
    right = (scores.argmax(1) == data.val_y[:256]).float().mean()
    assert float(right) == pytest.approx(metrics["val_accuracy"], abs=1e-6)
    assert found.classes == tuple("0123456789")


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {**PRUNED, "sparsity_ramp": 1.0},
        {**CHANNELS, "quantization": "post_training"},
        {**PRUNED, **RESNET, "quantization": "post_training", "pruning_scope": "global"},
    ],
    ids=["dense", "weights, not yet all", "channels in 8 bits", "resnet8"],
)
def test_the_file_is_what_was_evaluated(extra: dict[str, Any], tmp_path: Path) -> None:
    check_exported(extra, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        {**PRUNED, "width": 256, "quantization": "post_training"},
        {**CHANNELS, "width": 256, "quantization": "post_training"},
    ],
    ids=["weights in 8 bits", "channels in 8 bits"],
)
def test_the_graph_of_a_small_model_is_small_and_needs_torch_only(
    extra: dict[str, Any], tmp_path: Path
) -> None:
    """It is as accurate as what was evaluated; its file has the weights and the graph's text."""
    config = {**DIGITS, **extra}
    *_, (metrics, state, _), measured = run(config, 5)
    model, example = image.trained(config, [state])
    shapes = ({0: torch.export.Dim.AUTO},)
    torch.export.save(
        torch.export.export(model, (example,), dynamic_shapes=shapes), tmp_path / "model.pt2"
    )
    kept = sum(v.numel() * v.element_size() for v in model.state_dict().values())
    assert kept / 1e6 <= measured["model_megabytes"] < 0.15  # in fp32 0.34
    assert (tmp_path / "model.pt2").stat().st_size / 1e6 < measured["model_megabytes"] + 0.06
    data = read_images("digits", None, CPU)
    x, y = data.val_x[:256], data.val_y[:256]
    found = torch_only.accuracy(tmp_path / "model.pt2", x, y, tmp_path)
    assert found == pytest.approx(metrics["val_accuracy"], abs=1e-6)


def test_files_get_smaller(tmp_path: Path) -> None:
    weights = {"0.weight": torch.randn(400, 400), "0.bias": torch.randn(400)}
    values = 400 * 400
    sparse = {**weights, "0.weight": weights["0.weight"] * (torch.rand(400, 400) < 0.1)}
    for given, eighth, least in (
        (weights, False, 4 * values),
        (weights, True, values),
        (sparse, False, 0.4 * values + values / 8),
        (sparse, True, 0.1 * values + values / 8),
    ):
        found = packed(given, eighth)
        assert 1e6 * megabytes({"weights": found}) == pytest.approx(least, rel=0.1, abs=6000)
        torch.save(found, tmp_path / "weights.pt")
        read = unpacked(torch.load(tmp_path / "weights.pt", weights_only=True))
        expected = {
            n: quantize.rounded(v) if eighth and v.dim() > 1 else v for n, v in given.items()
        }
        assert same(read, expected)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"sparsity": 0.5}, "sparsity 0.5 needs pruning 'unstructured' or 'structured'"),
        ({**PRUNED, "sparsity": 1.0}, "sparsity must be a number at least 0 and less than 1, got"),
        ({**PRUNED, "sparsity": Linear(0.5, 0.1)}, "or a schedule that never falls"),
        (
            {**PRUNED, "sparsity_ramp": 0},
            "sparsity_ramp must be a number more than 0 and at most 1",
        ),
        ({"pruning": "magnitude"}, "pruning must be one of none, unstructured, structured"),
        ({"quantization": "int4"}, "quantization must be one of none, qat, post_training"),
        ({"distill_weight": 0.5}, "distill_weight 0.5 needs teacher, a file"),
        (
            {**PRUNED, "optimizer": "schedulefree_sgd"},
            "pruning must be 'none' with optimizer 'schedulefree_sgd', got 'unstructured'",
        ),
        (
            {**CHANNELS, **RESNET, "norm": "group"},
            "pruning 'structured' needs norm 'batch', got 'group'",
        ),
        (
            {**PRUNED, "optimizer": "sgd", "gradient_compression": "dgc"},
            "gradient_compression must be other than 'dgc' with pruning 'unstructured'",
        ),
        (
            {"quantization": "qat", "compile": True},
            "compile must be False with quantization 'qat', got True",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(extra: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        read_settings({**DIGITS, **extra})
    assert "\n" not in str(error.value)


def test_without_mlflow_a_registered_teacher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.compression.registered.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^teacher models:/digits/1 needs MLflow: pip install ml"):
        image.check({**DIGITS, "teacher": "models:/digits/1"})


def test_without_torchao_a_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchao.quantization.qat", None)
    with pytest.raises(ValueError, match=r"needs the library torchao: pip install 'time-to-targ"):
        read_settings({**DIGITS, "quantization": "qat"})
