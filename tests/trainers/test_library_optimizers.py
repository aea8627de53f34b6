"""NAdamW, Muon and schedule-free optimizers against the classes of torch and `schedulefree`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from schedulefree import AdamWScheduleFree, SGDScheduleFree
from torch import Tensor, nn

from autotune.schedules import Linear
from autotune.trial import Change
from trainers.image import train
from trainers.knobs import Knobs, build_optimizer
from trainers.models.gpt import GPT
from trainers.optimizers import Muon, make_optimizer, schedule_free
from trainers.optimizers.groups import matrix_groups
from trainers.training import read_training

STEPS, DECAY = 30, 0.05


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(16, 12),
        nn.Tanh(),
        nn.Linear(12, 3),
    )


X = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def rate(step: int) -> float:
    return 0.02 * min(1.0, (step + 1) / 5) * (1 - step / (2 * STEPS))


def stepped(model: nn.Module, optimizers: list[Any], shares: tuple[float, ...] = (1.0,)) -> Tensor:
    """The parameters after steps at a rate that changes; one share of it for each optimizer."""
    for step in range(STEPS):
        for optimizer, share in zip(optimizers, shares, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate(step) * share * group.get("lr_share", 1.0)
        model.zero_grad()
        model(X).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def split(model: nn.Module) -> list[dict[str, Any]]:
    """By hand: weights are decayed, the rest is not."""
    weights = [model[0].weight, model[3].weight, model[5].weight]
    rest = [p for p in model.parameters() if all(p is not w for w in weights)]
    return [{"params": weights, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]


def nadam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(split(model), betas=(0.8, 0.9), decoupled_weight_decay=True)


def free_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return SGDScheduleFree(split(model), momentum=0.8)


def free_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return AdamWScheduleFree(split(model), betas=(0.8, 0.9), r=1.0)


def factored(model: nn.Module) -> torch.optim.Adafactor:
    return torch.optim.Adafactor(split(model), 0.0, -0.7, (None, 0.01), 1.5)


BY_HAND = {
    "adafactor": (factored, {"beta2_decay": -0.7, "eps": 0.01, "clip_threshold": 1.5}),
    "nadamw": (nadam, {"betas": (0.8, 0.9)}),
    "schedulefree_sgd": (free_sgd, {"momentum": 0.8}),
    "schedulefree_adamw": (free_adamw, {"betas": (0.8, 0.9), "r": 1.0}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_its_steps_are_those_of_the_librarys_class(name: str) -> None:
    make, settings = BY_HAND[name]
    ends = []
    for ours in (True, False):
        model = network()
        if ours:
            found = make_optimizer(name, model, lr=0.0, weight_decay=DECAY, **settings)
        else:
            found = make(model)
        if name in schedule_free.KINDS:
            found.train()
        stepped(model, [found])
        if name in schedule_free.KINDS:
            found.eval()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_muon_is_torchs_on_matrices_and_kernels_and_adamw_on_the_rest(
    layout: torch.memory_format,
) -> None:
    model = network().to(memory_format=layout)
    settings = {"momentum": 0.9, "betas": (0.8, 0.9), "adamw_share": 0.5}
    found = stepped(model, [make_optimizer("muon", model, lr=0.0, weight_decay=DECAY, **settings)])
    hand = network()
    kernel = nn.Parameter(hand[0].weight.detach().flatten(1).clone())
    hidden = [kernel, hand[3].weight]
    muon = torch.optim.Muon(
        hidden, weight_decay=DECAY, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    head, plain = split(hand)
    rest = [{**head, "params": [hand[5].weight]}, plain]
    adamw = torch.optim.AdamW(rest, betas=(0.8, 0.9), fused=True)

    for step in range(STEPS):
        for optimizer, share in ((muon, 1.0), (adamw, 0.5)):
            for group in optimizer.param_groups:
                group["lr"] = rate(step) * share
        hand.zero_grad()
        hand(X).square().mean().backward()
        kernel.grad = hand[0].weight.grad.flatten(1)
        muon.step()
        adamw.step()
        hand[0].weight.data.copy_(kernel.detach().view_as(hand[0].weight))
    wanted = torch.cat([p.detach().flatten() for p in hand.parameters()])
    if layout is torch.contiguous_format:
        assert torch.equal(found, wanted)
    else:  # the columns of the kernel's matrix are in another order
        assert float((found - wanted).norm() / wanted.norm()) < 0.02  # steps are in bfloat16


def test_muon_goes_on_from_a_state_and_a_copy() -> None:
    model = network()
    optimizer = make_optimizer("muon", model, lr=0.0, weight_decay=DECAY)
    stepped(model, [optimizer])
    twin = copy.deepcopy(model)
    again = make_optimizer("muon", twin, lr=0.0, weight_decay=DECAY)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    both, of_both = copy.deepcopy((model, optimizer))
    end = stepped(model, [optimizer])
    assert torch.equal(end, stepped(twin, [again]))
    assert torch.equal(end, stepped(both, [of_both]))
    assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


def test_matrices_are_those_between_the_layers() -> None:
    gpt = GPT(20, layers=1, width=8, heads=2)
    names = {id(p): n for n, p in gpt.named_parameters()}
    matrices, *rest = matrix_groups(gpt, weight_decay=0.1)
    found = {names[id(p)] for p in matrices["params"]}
    assert found == {f"layers.0.{n}.weight" for n in ("qkv", "mix", "up", "down")}
    assert [(g["matrices"], g["decays"]) for g in rest] == [(False, True), (False, False)]
    assert [names[id(p)] for p in rest[0]["params"]] == ["embedding.weight"]
    kept = matrix_groups(network(), weight_decay=0.1, exclude=lambda name, p: name != "3.weight")
    assert [len(g["params"]) for g in kept] == [1, 7]


class Text(nn.Module):
    """Tables of tokens and of places, and linear layers by name, in order.

    The weights of `tied` are the first table's, and `says` is what it says its output to be.
    """

    def __init__(self, tied: str = "", says: str = "", **linear: int) -> None:
        super().__init__()
        self.says = says
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(8, 8)
        for name, outputs in linear.items():
            setattr(self, name, nn.Linear(8, outputs))
        if tied:
            self.get_submodule(tied).weight = self.tokens.weight

    def get_output_embeddings(self) -> nn.Module | None:
        return self.get_submodule(self.says) if self.says else None


OUTPUTS = {
    "as wide as the vocabulary": (
        GPT(8, layers=2, width=8, heads=2),
        {f"layers.{i}.{n}" for i in (0, 1) for n in ("qkv", "mix", "up", "down")},
    ),
    "as wide as the context": (Text(hidden=8, head=20), {"hidden"}),
    "classes, not a vocabulary": (Text(hidden=8, head=2), {"hidden"}),
    "without a table": (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), {"0"}),
    "tied, registered first": (Text(tied="head", head=20, hidden=8), {"hidden"}),
    "said by the model": (Text(says="head", head=20, hidden=8), {"hidden"}),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_the_output_layer_is_found_by_its_place_and_not_by_its_size(case: str) -> None:
    model, wanted = OUTPUTS[case]
    names = {id(p): n for n, p in model.named_parameters()}
    (matrices,) = [g for g in matrix_groups(model, weight_decay=0.1) if g["matrices"]]
    assert {names[id(p)] for p in matrices["params"]} == {f"{name}.weight" for name in wanted}


def test_a_group_that_is_added_to_muon_is_adamws() -> None:
    weight, bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    optimizer = Muon([{"params": [weight], "matrices": True}], lr=0.1)
    optimizer.add_param_group({"params": [bias], "lr": 0.1})
    weight.grad, bias.grad = torch.eye(2), torch.ones(2)
    optimizer.step()
    torch.testing.assert_close(bias.detach(), torch.full((2,), 0.899), rtol=1e-3, atol=0)
    assert not torch.equal(weight, torch.ones(2, 2))


# --- in the training loop -------------------------------------------------------------------------

NET = {"data": "digits", "model": "resnet8", "width": 4, "train_size": 500, "val_size": 200}
LOOP = {**NET, "batch_size": 32, "horizon": 2, "milestone": 500, "lr": 0.02, "weight_decay": 0.1}


@pytest.mark.parametrize("name", schedule_free.KINDS)
def test_evaluations_and_checkpoints_have_the_averages(name: str) -> None:
    trainer = train({**LOOP, "optimizer": name})
    next(trainer)
    milestone = next(trainer)
    learner = milestone.evaluate.__self__._learner
    state = milestone.state()["learner"]
    beta = 0.9
    trained, averages = [], []
    for p in learner.model.parameters():
        z = learner.optimizer.state[p]["z"]
        averages.append(p.detach().clone())
        trained.append(beta * p.detach() + (1 - beta) * z)
    for name_, p in learner.model.named_parameters():
        assert torch.equal(p, state["model"][name_])
    before = milestone.evaluate()
    learner.begin()
    for p, y in zip(learner.model.parameters(), trained, strict=True):
        torch.testing.assert_close(p.detach(), y, rtol=1e-5, atol=1e-6)
    assert milestone.evaluate()["val_loss"] != before["val_loss"]
    trainer.close()


@pytest.mark.parametrize(("size", "kept"), [(32, 8), (64, 8), (100, 6), (512, 1), (600, 1)])
def test_statistics_are_those_of_eight_batches_or_of_512_samples(size: int, kept: int) -> None:
    """As the documentation says."""
    passes: list[Tensor] = []
    averages = schedule_free.Averages(nn.BatchNorm1d(2), passes.append)
    for _ in range(20):
        averages.keep(torch.zeros(size, 2))
    averages.settle(SGDScheduleFree([nn.Parameter(torch.zeros(1))]))
    assert [len(x) for x in passes] == [size] * kept
    card = Path(__file__).parents[2] / "docs" / "cards" / "optimizers.md"
    said = " ".join(card.read_text().split())
    assert "the last 8 batches, or over fewer that have 512 samples together" in said


def test_the_statistics_of_batch_normalisation_are_those_of_the_averages() -> None:
    """The mean of the inputs of the first one, over the last passes, with the averages' kernel."""
    seen: list[Tensor] = []
    trainer = train({**LOOP, "optimizer": "schedulefree_adamw"})
    learner = next(trainer).evaluate.__self__._learner
    keep = learner._averages.keep

    def keeps(x: Tensor) -> None:
        seen.append(x)
        keep(x)

    learner._averages.keep = keeps
    next(trainer)
    passes = [learner.model[0](x).mean((0, 2, 3)) for x in seen[-8:]]
    wanted = torch.stack(passes).mean(0).detach()
    torch.testing.assert_close(learner.model[1].running_mean, wanted)
    assert learner.model[1].momentum == 0.1
    trainer.close()


def test_the_size_of_a_step_is_that_of_the_weights_that_are_trained() -> None:
    """Not that of the change to the averages at the milestone."""
    trainer = train({**LOOP, "optimizer": "schedulefree_sgd"})
    learner = next(trainer).evaluate.__self__._learner
    step, sizes = learner.optimizer.step, []

    def flat() -> Tensor:
        return torch.cat([p.detach().flatten() for p in learner.model.parameters()])

    def steps() -> None:
        before = flat()
        step()
        sizes.append(float((flat() - before).norm() / flat().norm()))

    learner.optimizer.step = steps
    assert next(trainer).evaluate()["update_ratio"] == pytest.approx(sizes[-1], rel=1e-4)
    trainer.close()


WRONG = [
    ({"momentum": Linear(0.8, 0.9)}, "no schedule, got linear 0.8 -> 0.9"),
    ({"momentum": 0.0}, "no schedule, got 0"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_momentum_without_averages_is_refused(options: dict[str, Any], said: str) -> None:
    config = {"lr": 0.1, "optimizer": "schedulefree_sgd", **options}
    rule = "momentum must be a number in \\(0, 1\\) with optimizer 'schedulefree_sgd'"
    with pytest.raises(ValueError, match=f"{rule}, {said}"):
        read_training(config, {}, "here")


def test_a_controller_may_not_set_a_momentum_of_zero() -> None:
    training, _ = read_training({"lr": 0.1, "optimizer": "schedulefree_sgd"}, {}, "here")
    knobs = Knobs(training, 1, {})
    with pytest.raises(ValueError, match="momentum of schedulefree_sgd must be greater than 0"):
        knobs.change(Change(momentum=0.0))
    knobs.change(Change(momentum=0.5))
    optimizer: Any = build_optimizer(network(), training)
    knobs.set(optimizer, 0.0)
    assert {group["momentum"] for group in optimizer.param_groups} == {0.5}


def test_a_torch_that_is_too_old_is_said_before_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"optimizer 'muon' needs torch 2\.9 or later, this is 2"):
        read_training({"lr": 0.1, "optimizer": "muon"}, {}, "here")


def test_nadamw_goes_on_from_its_product_of_momenta_as_it_was() -> None:
    """Torch would load it as a moment: in bfloat16, or on a GPU that each step then waits for."""
    made = [make_optimizer("nadamw", network().bfloat16(), lr=0.01) for _ in range(2)]
    for parameter in (p for group in made[0].param_groups for p in group["params"]):
        parameter.grad = torch.ones_like(parameter)
    for _ in range(3):
        made[0].step()
    made[1].load_state_dict(made[0].state_dict())
    first, second = ([s["mu_product"] for s in o.state.values()] for o in made)
    assert [(t.dtype, t.item()) for t in second] == [(torch.float32, t.item()) for t in first]
