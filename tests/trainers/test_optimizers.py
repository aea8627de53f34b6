"""LARS and LAMB against float64 references, optax, one process against two; then the edges.

Run as a script, this file is one of the two ranks: `test_optimizers.py RANK FOLDER`.
"""

import copy
import doctest
import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainers.optimizers import (
    LAMB,
    LARS,
    buckets,
    layerwise_optimizers,
    make_optimizer,
    parameter_groups,
    variant_settings,
)
from trainers.optimizers import groups as parameter_groups_module
from trainers.optimizers import make as optimizers

ROOT = Path(__file__).parents[2]
STEPS, ETA, WD, MU = 100, 0.02, 0.05, 0.9
SHAPES = [(4, 3), (2, 3, 2, 2), (5,), (3, 2)]
LAMB_FREE = {"weight_decay": WD, "betas": (0.8, 0.97)}


def norm(x):
    return math.sqrt(sum(v * v for v in x.flatten().tolist()))


def ratio_or_1(above, below, factor=1.0, extra=0.0):
    return factor * above / (below + extra) if above > 0 and below > 0 else 1.0


# One rule per source. A rule takes one tensor's weights, gradient, own state and the learning
# rate, and returns the new weights.


def lars_paper(w, g, s, lr):
    lam = ratio_or_1(norm(w), norm(g), ETA, WD * norm(w))
    s["v"] = MU * s.get("v", 0) + lr * lam * (g + WD * w)
    return w - s["v"]


def lars_optax(w, g, s, lr):
    u = g + WD * w
    s["v"] = MU * s.get("v", 0) + lr * ratio_or_1(norm(w), norm(u), ETA) * u
    return w - s["v"]


def lars_timm(w, g, s, lr):
    lam = ratio_or_1(norm(w), norm(g), ETA, WD * norm(w) + 1e-8)
    s["v"] = MU * s.get("v", 0) + lam * (g + WD * w)
    return w - lr * s["v"]


def lars_timm_nesterov(w, g, s, lr):
    u = ratio_or_1(norm(w), norm(g), ETA, WD * norm(w) + 1e-8) * (g + WD * w)
    s["v"] = MU * s.get("v", 0) + u
    return w - lr * (u + MU * s["v"])


def lars_undecayed_timm(w, g, s, lr):
    s["v"] = MU * s.get("v", 0) + g
    return w - lr * s["v"]


def lars_larc(w, g, s, lr):
    rate = lr
    if norm(w) > 0 and norm(g) > 0:
        rate = min(ETA * norm(w) / (norm(g) + WD * norm(w) + 1e-8), lr)
    s["v"] = MU * s.get("v", 0) + (rate / lr if lr else 1.0) * (g + WD * w)
    return w - lr * s["v"]


def lars_bounded(w, g, s, lr):
    lam = ratio_or_1(norm(w), norm(g), ETA, WD * norm(w))
    lam = min(max(lam, 0.01), 0.03) if norm(w) > 0 and norm(g) > 0 else lam
    s["v"] = MU * s.get("v", 0) + lr * lam * (g + WD * w)
    return w - s["v"]


def adam_direction(g, s, *, correct=True, average=True):
    s["t"] = s.get("t", 0) + 1
    s["m"] = 0.8 * s.get("m", 0) + (0.2 if average else 1.0) * g
    s["s"] = 0.97 * s.get("s", 0) + 0.03 * g * g
    m, v = s["m"], s["s"]
    if correct:
        m, v = m / (1 - 0.8 ** s["t"]), v / (1 - 0.97 ** s["t"])
    return m / (v.sqrt() + 1e-6)


def lamb_paper(w, g, s, lr):
    u = adam_direction(g, s) + WD * w
    return w - lr * ratio_or_1(norm(w), norm(u)) * u


def lamb_undecayed_nvidia(w, g, s, lr):
    return w - lr * adam_direction(g, s)


def lamb_mode_0(w, g, s, lr):
    u = adam_direction(g + WD * w, s)
    return w - lr * ratio_or_1(norm(w), norm(u)) * u


def lamb_not_averaged(w, g, s, lr):
    u = adam_direction(g, s, average=False) + WD * w
    return w - lr * ratio_or_1(norm(w), norm(u)) * u


def lamb_cybertronai(w, g, s, lr):
    u = adam_direction(g, s, correct=False) + WD * w
    return w - lr * ratio_or_1(min(norm(w), 10.0), norm(u)) * u


def lamb_trust_clip(w, g, s, lr):
    u = adam_direction(g, s) + WD * w
    return w - lr * min(ratio_or_1(norm(w), norm(u)), 1.0) * u


def lars(variant, **more):
    return LARS, {"momentum": MU, "weight_decay": WD, **variant_settings("lars", variant), **more}


def lamb(variant, **more):
    return LAMB, {**LAMB_FREE, **variant_settings("lamb", variant), **more}


ETAS = {"trust_coefficient": ETA}
RULES = {  # rule, optimizer with settings, norm to which all gradients are clipped together
    "lars paper": (lars_paper, lars("paper", **ETAS), None),
    "lars optax": (lars_optax, lars("optax", **ETAS), None),
    "lars timm": (lars_timm, lars("timm", **ETAS), None),
    "lars timm nesterov": (lars_timm_nesterov, lars("timm", **ETAS, nesterov=True), None),
    "lars timm undecayed": (lars_undecayed_timm, lars("timm", weight_decay=0.0), None),
    "lars larc": (lars_larc, lars("larc"), None),
    "lars bounds": (lars_bounded, lars("paper", **ETAS, trust_min=0.01, trust_max=0.03), None),
    "lars global clip": (lars_paper, lars("paper", **ETAS, max_grad_norm=0.5), 0.5),
    "lars optax clip": (lars_optax, lars("optax", **ETAS, max_grad_norm=0.5), 0.5),
    "lamb paper": (lamb_paper, lamb("paper"), None),
    "lamb optax": (lamb_paper, lamb("optax"), None),
    "lamb nvidia": (lamb_paper, lamb("nvidia"), 1.0),
    "lamb nvlamb": (lamb_paper, lamb("nvlamb"), 1.0),
    "lamb nvidia undecayed": (lamb_undecayed_nvidia, lamb("nvidia", weight_decay=0.0), 1.0),
    "lamb nvidia mode 0": (lamb_mode_0, lamb("nvidia", decoupled=False), 1.0),
    "lamb not averaged": (lamb_not_averaged, lamb("nvidia", grad_averaging=False), 1.0),
    "lamb cybertronai": (lamb_cybertronai, lamb("cybertronai"), None),
    "lamb timm trust_clip": (lamb_trust_clip, lamb("nvidia", trust_max=1.0), 1.0),
}


def start(shapes=SHAPES, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    weights = [scale * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    weights[-1].zero_()  # a layer that starts at zero
    return weights


def gradient(w, step):
    """Of a bowl whose floor moves a little; it depends on the weights, so errors would grow."""
    place = torch.arange(w.numel(), dtype=torch.float64).reshape(w.shape)
    return (1 + 0.3 * torch.cos(place)) * (w - torch.sin(place)) + 0.1 * torch.sin(place + step)


def rate(step, kind=LARS):
    """Warms up from zero, then falls; low enough for LAMB not to bounce, which is chaotic."""
    top = 0.3 if kind is LARS else 0.05
    return top * min(step / 10, 1.0) * (1 - step / (2 * STEPS))


def clipped(grads, limit):
    total = norm(torch.cat([g.flatten() for g in grads]))
    return [g * limit / total for g in grads] if limit and total > limit else grads


def distance(a, b):
    a, b = (torch.cat([x.detach().flatten() for x in xs]) for xs in (a, b))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", RULES)
def test_agrees_with_reference(name):
    rule, (kind, options), limit = RULES[name]
    want, states = start(scale=6.0), [{} for _ in SHAPES]
    got = [nn.Parameter(w.clone()) for w in want]
    optimizer = kind(got, lr=0.0, **options)
    for step in range(STEPS):
        grads = clipped([gradient(w, step) for w in want], limit)
        lr = rate(step, kind)
        want = [rule(w, g, s, lr) for w, g, s in zip(want, grads, states, strict=True)]
        for p in got:
            p.grad = gradient(p.detach(), step)
        optimizer.param_groups[0]["lr"] = rate(step, kind)
        optimizer.step()
    assert distance(got, want) < 1e-12
    assert distance(got, start(scale=6.0)) > 1e-2


def test_variants_differ():
    ends = {}
    for name, (_, (kind, options), _) in RULES.items():
        params = [nn.Parameter(w) for w in start(scale=6.0)]
        optimizer = kind(params, lr=0.0, **options)
        for step in range(30):
            for p in params:
                p.grad = gradient(p.detach(), step)
            optimizer.param_groups[0]["lr"] = rate(step, kind)
            optimizer.step()
        ends[name] = params
    same = [{"lamb paper", "lamb optax"}, {"lamb nvidia", "lamb nvlamb"}]
    for a in ends:
        for b in ends:
            assert a == b or {a, b} in same or distance(ends[a], ends[b]) > 1e-5, (a, b)


NUMBER = st.floats(0.01, 0.9)
MAYBE = st.none() | NUMBER


@st.composite
def lars_problems(draw):
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5))
    options = {
        "nesterov": draw(st.booleans()),
        "lr_in_momentum": draw(st.booleans()),
        "denominator": draw(st.sampled_from(["sum_of_norms", "norm_of_sum"])),
        "larc_clip": draw(st.booleans()),
        "trust_max": draw(MAYBE),
        "max_grad_norm": draw(MAYBE),
        "adapt": draw(st.sampled_from(["always", "if_decayed", "never"])),
        "eps": draw(st.sampled_from([0.0, 1e-8])),
    }
    keys = ("lr", "momentum", "weight_decay", "trust_coefficient")
    steps = draw(st.lists(st.tuples(*[NUMBER] * 4), min_size=1, max_size=4))
    steps = [dict(zip(keys, numbers, strict=True)) for numbers in steps]
    for numbers in steps:
        numbers["weight_decay"] *= draw(st.booleans())
    return shapes, options, steps, draw(st.integers(0, 99))


@settings(max_examples=150, deadline=None)
@given(lars_problems())
def test_lars_with_any_settings_and_shapes(problem):
    shapes, o, steps, seed = problem
    want = start(shapes, seed)
    velocity = [torch.zeros_like(w) for w in want]
    got = [nn.Parameter(w.clone()) for w in want]
    optimizer = LARS(got, lr=0.1, **o)
    for k, n in enumerate(steps):
        lr, mu, wd, eta = n.values()
        grads = clipped([gradient(w, k) for w in want], o["max_grad_norm"])
        for i, (w, g) in enumerate(zip(want, grads, strict=True)):
            u = g + wd * w
            sums = o["denominator"] == "sum_of_norms"
            below, more = (norm(g), wd * norm(w)) if sums else (norm(u), 0.0)
            lam = 1.0
            adapts = o["adapt"] == "always" or (o["adapt"] == "if_decayed" and wd > 0)
            if adapts and norm(w) > 0 and below > 0:
                lam = eta * norm(w) / (below + more + o["eps"])
                lam = min(lam / lr, 1.0) if o["larc_clip"] else lam
                lam = min(lam, o["trust_max"] or lam)
            u = (lr if o["lr_in_momentum"] else 1.0) * lam * u
            velocity[i] = mu * velocity[i] + u
            move = u + mu * velocity[i] if o["nesterov"] else velocity[i]
            want[i] = w - (1.0 if o["lr_in_momentum"] else lr) * move
        optimizer.param_groups[0].update(n)
        for p in got:
            p.grad = gradient(p.detach(), k)
        optimizer.step()
    for p, w in zip(got, want, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-11, atol=1e-13)


@st.composite
def lamb_problems(draw):
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5))
    options = {key: draw(st.booleans()) for key in FLAGS}
    options |= {key: draw(MAYBE) for key in ("weight_norm_max", "trust_max", "max_grad_norm")}
    options["adapt"] = draw(st.sampled_from(["always", "if_decayed", "never"]))
    keys = ("lr", "weight_decay", "trust_coefficient", "b1", "b2")
    steps = draw(st.lists(st.tuples(*[NUMBER] * 5), min_size=1, max_size=4))
    steps = [dict(zip(keys, numbers, strict=True)) for numbers in steps]
    for numbers in steps:
        numbers["weight_decay"] *= draw(st.booleans())
    return shapes, options, steps, draw(st.integers(0, 99))


FLAGS = ("bias_correction", "grad_averaging", "decoupled")


@settings(max_examples=150, deadline=None)
@given(lamb_problems())
def test_lamb_with_any_settings_and_shapes(problem):
    shapes, o, steps, seed = problem
    want = start(shapes, seed)
    moments = [[torch.zeros_like(w), torch.zeros_like(w)] for w in want]
    got = [nn.Parameter(w.clone()) for w in want]
    optimizer = LAMB(got, lr=0.1, **o)
    for k, n in enumerate(steps):
        lr, wd, eta, b1, b2 = n.values()
        grads = clipped([gradient(w, k) for w in want], o["max_grad_norm"])
        for i, (w, g) in enumerate(zip(want, grads, strict=True)):
            g = g if o["decoupled"] else g + wd * w
            m, v = moments[i]
            moments[i] = m, v = (
                b1 * m + (1 - b1 if o["grad_averaging"] else 1) * g,
                (b2 * v + (1 - b2) * g * g),
            )
            if o["bias_correction"]:
                m, v = m / (1 - b1 ** (k + 1)), v / (1 - b2 ** (k + 1))
            u = m / (v.sqrt() + 1e-6) + (wd * w if o["decoupled"] else 0)
            ratio = 1.0
            if o["adapt"] == "always" or (o["adapt"] == "if_decayed" and wd > 0):
                size = min(norm(w), o["weight_norm_max"] or norm(w))
                ratio = ratio_or_1(size, norm(u), eta)
                if norm(w) > 0 and norm(u) > 0:
                    ratio = min(ratio, o["trust_max"] or ratio)
            want[i] = w - lr * ratio * u
        now = {"lr": lr, "weight_decay": wd, "trust_coefficient": eta, "betas": (b1, b2)}
        optimizer.param_groups[0].update(now)
        for p in got:
            p.grad = gradient(p.detach(), k)
        optimizer.step()
    for p, w in zip(got, want, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-11, atol=1e-12)


SCALE, OVERFLOWS = 1024.0, (0, 1, 7)


def scaled_steps(kind, options, infinite):
    """Steps as a `GradScaler` has an optimizer make them; some gradients are infinite."""
    params = [nn.Parameter(w) for w in start(scale=6.0)]
    optimizer = kind(params, lr=0.0, **options)
    taken = 0
    for step in range(30 + len(OVERFLOWS)):
        overflows = step in OVERFLOWS
        if overflows and not infinite:
            continue
        for p in params:
            p.grad = (
                SCALE * gradient(p.detach(), taken) if infinite else gradient(p.detach(), taken)
            )
            if overflows:
                p.grad.view(-1)[0] = math.inf
        optimizer.param_groups[0]["lr"] = rate(taken, kind)
        if infinite:
            optimizer.grad_scale = torch.tensor(SCALE)
            optimizer.found_inf = torch.tensor(float(overflows))
        optimizer.step()
        taken += not overflows
    return params, optimizer


@pytest.mark.parametrize("name", RULES)
def test_scaled_gradients_and_left_out_steps_change_nothing(name):
    _, (kind, options), _ = RULES[name]
    (want, plain), (got, scaled) = (scaled_steps(kind, options, i) for i in (False, True))
    assert distance(got, want) < 1e-12
    assert distance(got, start(scale=6.0)) > 1e-2
    a, b = plain.state_dict()["state"], scaled.state_dict()["state"]
    for number, state in a.items():
        for key, value in state.items():
            torch.testing.assert_close(b[number][key], value, rtol=1e-11, atol=1e-13)


def test_a_saved_and_restored_optimizer_counts_its_own_steps():
    """What a scaler left out before a checkpoint is not taken off again after it."""
    kind, options = LAMB, {**LAMB_FREE, "eps": 1e-6}
    _, whole = scaled_steps(kind, options, True)
    again = kind([nn.Parameter(w) for w in start(scale=6.0)], lr=0.0, **options)
    again.skipped = torch.tensor(5.0)
    again.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert [state["step"] for state in again.state_dict()["state"].values()] == [30] * 4
    assert [state["step"] for state in copy.deepcopy(whole).state.values()] == [30] * 4


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_gradscaler_hands_over_its_scale(name):
    ends = []
    for scale in (None, SCALE):
        params = params_with_grads()
        optimizer = {"lars": LARS, "lamb": LAMB}[name](params, lr=0.1, weight_decay=0.01)
        if scale is None:
            optimizer.step()
        else:
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            scaler.scale(torch.zeros(()))
            for p in params:
                p.grad.mul_(scale)
            scaler.step(optimizer)
            scaler.update()
        ends.append(params)
    assert distance(*ends) < 1e-6


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_kept_buckets_are_those_that_are_made_anew(kind):
    """Whatever changes between two steps: gradients that are missing, states, groups, a copy."""
    ends = []
    for keeps in (True, False):
        params = [nn.Parameter(w) for w in start(scale=6.0)]
        optimizer = kind(params[:3], lr=0.02, weight_decay=WD, max_grad_norm=5.0)
        for step in range(12):
            if step == 4:
                optimizer.add_param_group({"params": params[3:], "weight_decay": 0.0})
            if step == 6:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if step == 8:
                state = next(iter(optimizer.state.values()))
                name = kind._moments[0]
                state[name] = 2 * state[name]
            if step == 10:
                optimizer.param_groups[0]["params"].reverse()
            for number, p in enumerate(params):
                p.grad = None if (step, number) == (2, 1) else gradient(p.detach(), step)
            if not keeps:
                optimizer.kept.clear()
            optimizer.step()
            assert all(not b.grads for kept in optimizer.kept.values() for b in kept.buckets)
        ends.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_buckets_are_made_once(monkeypatch):
    params, made = params_with_grads(), []
    sorts = buckets._sorted
    monkeypatch.setattr(buckets, "_sorted", lambda *given: made.append(1) or sorts(*given))
    optimizer = LAMB(params, lr=0.1)
    for _ in range(5):
        optimizer.step()
        for p in params:
            p.grad = torch.ones_like(p)
    assert len(made) == 1
    assert [state["step"] for state in optimizer.state.values()] == [5] * 3


def optax_run(make, weights, kind):
    """Trains with an optax optimizer in float64, the learning rate being `rate`."""
    jax = pytest.importorskip("jax", reason="optax, the oracle, runs on jax")
    optax = pytest.importorskip("optax", reason="optax is an optional oracle")
    with jax.enable_x64(True):
        table = jax.numpy.array([rate(step, kind) for step in range(STEPS)])
        optimizer = make(optax, lambda count: table[count])
        params = [jax.numpy.array(w.numpy()) for w in weights]
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for step in range(STEPS):
            as_torch = [torch.tensor(p.tolist(), dtype=torch.float64) for p in params]
            grads = [jax.numpy.array(gradient(w, step).numpy()) for w in as_torch]
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return [torch.tensor(p.tolist(), dtype=torch.float64) for p in params]


OPTAX = {
    "lars": (lars("optax", **ETAS), lambda o, lr: o.lars(lr, WD, trust_coefficient=ETA)),
    "lars nesterov": (
        lars("optax", **ETAS, nesterov=True),
        lambda o, lr: o.lars(lr, WD, trust_coefficient=ETA, nesterov=True),
    ),
    "lamb": (lamb("optax"), lambda o, lr: o.lamb(lr, 0.8, 0.97, weight_decay=WD)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTAX)
def test_agrees_with_optax(name):
    (kind, options), make = OPTAX[name]
    want = optax_run(make, start(), kind)
    got = [nn.Parameter(w) for w in start()]
    optimizer = kind(got, lr=0.0, **options)
    for step in range(STEPS):
        for p in got:
            p.grad = gradient(p.detach(), step)
        optimizer.param_groups[0]["lr"] = rate(step, kind)
        optimizer.step()
    assert distance(got, want) < 1e-12


def params_with_grads(n=3, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(4, 3, generator=generator).to(dtype)) for _ in range(n)]
    for p in params:
        p.grad = torch.randn(4, 3, generator=generator).to(dtype)
    return params


BOTH = pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LARS, {"momentum": 0.9, "weight_decay": 0.01}),
        (LARS, {"denominator": "norm_of_sum", "nesterov": True, "max_grad_norm": 0.1}),
        (LAMB, {"weight_decay": 0.01, "max_grad_norm": 0.1}),
    ],
)


@BOTH
def test_saved_state_continues_bit_for_bit(kind, options):
    params = params_with_grads()
    optimizer = kind(params, lr=0.1, **options)
    optimizer.step()
    params[0].grad = None  # so that parameters differ in age
    optimizer.step()
    file = io.BytesIO()
    torch.save([params, optimizer.state_dict()], file)
    file.seek(0)
    twins, state = torch.load(file, weights_only=False)
    twin = kind(twins, lr=9.0)
    twin.load_state_dict(state)
    for step in range(3):
        for p, q in zip(params, twins, strict=True):
            p.grad = q.grad = torch.full((4, 3), 0.1 * (step + 1))
        optimizer.step()
        twin.step()
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))
    assert twin.param_groups[0]["lr"] == 0.1


@BOTH
def test_deep_copy_trains_alike(kind, options):
    params = params_with_grads()
    optimizer = kind(params, lr=0.1, **options)
    optimizer.step()
    twins, twin = copy.deepcopy((params, optimizer))
    for p, q in zip(params, twins, strict=True):
        q.grad = p.grad.clone()
    optimizer.step()
    twin.step()
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@BOTH
def test_step_takes_a_fixed_number_of_list_operations_and_never_reads_a_value(kind, options):
    counts = []
    for n in (2, 40):
        optimizer = kind(params_with_grads(n), lr=0.1, **options)
        optimizer.step()
        with Operations() as seen:
            optimizer.step()
        synchronising = "_local_scalar_dense", "is_nonzero", "_to_copy", "equal"
        assert not [name for name in seen.names if any(s in name for s in synchronising)]
        counts.append(len(seen.names))
    assert counts[0] == counts[1] <= 40


@BOTH
def test_gradients_stay_as_they_were_and_missing_ones_are_skipped(kind, options):
    params = params_with_grads()
    params[1].grad = None
    before = [p.detach().clone() for p in params]
    grads = [params[0].grad.clone(), None, params[2].grad.clone()]
    optimizer = kind(params, lr=0.1, **options)
    optimizer.step()
    moved = [not torch.equal(p, b) for p, b in zip(params, before, strict=True)]
    assert moved == [True, False, True]
    assert torch.equal(params[0].grad, grads[0])
    assert torch.equal(params[2].grad, grads[2])
    assert params[1] not in optimizer.state


@BOTH
def test_no_gradients_at_all(kind, options):
    params = [nn.Parameter(torch.ones(2))]
    kind(params, lr=0.1, **options).step()
    assert torch.equal(params[0], torch.ones(2))


@BOTH
def test_one_group_may_mix_dtypes_and_layouts(kind, options):
    """Alone or together, in any layout, an update is the same; the global norm is over all."""
    torch.manual_seed(0)
    shapes = [(2, 3, 4, 4), (2, 3, 4, 4), (6,)]
    values = [torch.randn(s, dtype=torch.float64) for s in shapes]
    grads = [torch.randn(s, dtype=torch.float64) for s in shapes]
    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    mixed = [nn.Parameter(v.to(d)) for v, d in zip(values, dtypes, strict=True)]
    mixed[0] = nn.Parameter(values[0].to(memory_format=torch.channels_last))
    plain = [nn.Parameter(v.clone()) for v in values]
    for params in (mixed, plain):
        optimizer = kind(params, lr=0.1, **options)
        for _ in range(3):
            for p, g in zip(params, grads, strict=True):
                p.grad = g.to(p.dtype)
            optimizer.step()
    for p, q, rtol in zip(mixed, plain, (1e-2, 1e-5, 0.1), strict=True):
        torch.testing.assert_close(p.detach().double(), q.detach(), rtol=rtol, atol=rtol / 10)
    state = next(iter(optimizer.state.values()))
    assert mixed[0].is_contiguous(memory_format=torch.channels_last)
    assert all(v.dtype == torch.float64 for v in state.values() if torch.is_tensor(v))


@pytest.mark.parametrize("limit", [1, 30])
def test_splitting_into_small_buckets_changes_nothing(monkeypatch, limit):
    ends = []
    for elements in (limit, 10**6):
        monkeypatch.setattr(buckets, "_BUCKET_ELEMENTS", elements)
        params = params_with_grads(7)
        for kind in (LARS, LAMB):
            optimizer = kind(params, lr=0.1, weight_decay=0.1, max_grad_norm=0.3)
            optimizer.step()
            optimizer.step()
        ends.append(params)
    for p, q in zip(*ends, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=0)


@BOTH
def test_closure_is_called_with_gradients_enabled(kind, options):
    w = nn.Parameter(torch.ones(3, 3))
    optimizer = kind([w], lr=0.1, **options)

    def closure():
        optimizer.zero_grad()
        loss = (w**2).sum()
        loss.backward()
        return loss

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert first == 9.0
    assert second < first
    assert optimizer.step() is None


@pytest.mark.parametrize("kind", [LARS, LAMB])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_zero_gradients_and_zero_weights_have_ratio_1(kind, decay):
    weights = [torch.ones(3), torch.zeros(3)]
    params = [nn.Parameter(w.clone()) for w in weights]
    params[0].grad, params[1].grad = torch.zeros(3), torch.full((3,), 2.0)
    kind(params, lr=0.1, weight_decay=decay, eps=1e-9, trust_coefficient=0.01).step()
    falls = 0.1 * decay * (0.01 / decay if kind is LAMB and decay else 1.0)  # LAMB: |u| is not 0
    torch.testing.assert_close(params[0].data, torch.full((3,), 1.0 - falls))
    torch.testing.assert_close(params[1].data, torch.full((3,), -0.2 if kind is LARS else -0.1))


def test_excluded_parameters_are_plain_sgd():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    twin = copy.deepcopy(model)
    ours = make_optimizer("lars", model, lr=0.1, weight_decay=0.1, momentum=0.8)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.8)
    for _ in range(3):
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            p.grad = q.grad = torch.ones_like(p)
        ours.step()
        sgd.step()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(p, q) == (name != "0.weight")


def test_sparse_complex_and_half_are_refused():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    for kind in (LARS, LAMB):
        with pytest.raises(RuntimeError, match="dense gradients"):
            kind(table.parameters(), lr=0.1).step()
        with pytest.raises(ValueError, match="complex64"):
            kind(params_with_grads(dtype=torch.complex64), lr=0.1).step()
    with pytest.raises(ValueError, match="float16"):
        LAMB(params_with_grads(dtype=torch.float16), lr=0.1).step()


BAD = [
    ("lars", {"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
    ("lars", {"lr": math.nan}, "lr must be a finite number >= 0, got nan"),
    ("sgd", {"momentum": 1.0}, "momentum must be a number in [0, 1), got 1.0"),
    ("lars", {"weight_decay": "1e-4"}, "weight_decay must be a finite number >= 0, got '1e-4'"),
    ("lars", {"trust_coefficient": 0}, "trust_coefficient must be a finite number > 0, got 0"),
    ("lars", {"nesterov": 1}, "nesterov must be True or False, got 1"),
    ("lars", {"denominator": "sum"}, "denominator must be 'sum_of_norms' or 'norm_of_sum'"),
    ("lars", {"adapt": True}, "adapt must be 'always' or 'if_decayed' or 'never', got True"),
    ("lars", {"trust_min": 2.0, "trust_max": 1.0}, "trust_min must be at most trust_max (1.0)"),
    ("lamb", {"betas": (0.9, 1.0)}, "betas must be two numbers in [0, 1), got (0.9, 1.0)"),
    ("lamb", {"max_grad_norm": 0.0}, "max_grad_norm must be None or a number > 0, got 0.0"),
    ("adamw", {"betas": 0.9}, "betas must be two numbers in [0, 1), got 0.9"),
    ("lars", {"momentun": 0.9}, "unknown setting of lars 'momentun'; allowed: lr, momentum, "),
    ("sgd", {"momentun": 0.9}, "nearest: 'momentum'"),
    ("LARS ", {}, "unknown optimizer 'LARS '; allowed: sgd, adamw, nadamw, lars, lamb, muon, "),
    ("lars", {"variant": "tim"}, "unknown variant of lars 'tim'; allowed: paper, optax, timm, "),
    ("sgd", {"variant": "paper"}, "unknown optimizer with variants 'sgd'; allowed: lars, lamb"),
    ("muon", {"adamw_share": 0}, "adamw_share must be a finite number > 0, got 0"),
    ("muon", {"ns_steps": 5.0}, "ns_steps must be a whole number from 1 to 99, got 5.0"),
    ("muon", {"adjust_lr_fn": "rms"}, "adjust_lr_fn must be 'match_rms_adamw' or 'original'"),
    ("nadamw", {"momentum_decay": -1}, "momentum_decay must be a finite number >= 0, got -1"),
    ("schedulefree_adamw", {"betas": (0.0, 0.9)}, "the momentum of schedulefree_adamw must be gr"),
    ("schedulefree_sgd", {"momentum": 0}, "the momentum of schedulefree_sgd must be greater than"),
    ("lars", {"exclude": "bias"}, "unknown exclude 'bias'; allowed: bias_and_norm, none, "),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_wrong_settings_are_named(name, options, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make_optimizer(name, nn.Linear(2, 2), **{"lr": 0.1, **options})
    assert "\n" not in str(error.value)


def test_wrong_settings_are_found_in_groups_and_before_a_step():
    params = params_with_grads(2)
    with pytest.raises(ValueError, match="momentum must be"):
        LARS([{"params": params, "momentum": 1.5}], lr=0.1)
    optimizer = LARS(params[:1], lr=0.1)
    with pytest.raises(ValueError, match="lr must be"):
        optimizer.add_param_group({"params": params[1:], "lr": -1})
    assert len(optimizer.param_groups) == 1
    before = params[0].detach().clone()
    optimizer.param_groups[0]["lr"] = -0.1
    with pytest.raises(ValueError, match="lr must be"):
        optimizer.step()
    assert torch.equal(params[0], before)


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.batch = nn.BatchNorm2d(4)
        self.layer = nn.LayerNorm([4, 6, 6])  # its weight has three dimensions
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.scale = nn.Parameter(torch.ones(()))
        self.tied = nn.ParameterList([self.scale])


def test_parameter_groups():
    model = Everything()
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, excluded = parameter_groups(model, weight_decay=0.1)
    assert {names[id(p)] for p in decayed["params"]} == {
        "conv.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    }
    assert len(decayed["params"]) + len(excluded["params"]) == len(list(model.parameters()))
    assert (decayed["weight_decay"], decayed["decays"]) == (0.1, True)
    assert (excluded["weight_decay"], excluded["decays"]) == (0.0, False)
    assert excluded["adapt"] == "never"
    (everything,) = parameter_groups(model, weight_decay=0.1, exclude="none")
    assert len(everything["params"]) == len(list(model.parameters()))
    only_conv = lambda name, p: not name.startswith("conv")  # noqa: E731
    assert len(parameter_groups(model, weight_decay=0.1, exclude=only_conv)[0]["params"]) == 2
    with pytest.raises(ValueError, match="ReLU has none"):
        parameter_groups(nn.ReLU(), weight_decay=0.1)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "lamb"])
def test_every_optimizer_learns(name):
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    y = x @ torch.randn(5, 3)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    options = {"trust_coefficient": 0.1} if name == "lars" else {}
    lr = {"lars": 0.2, "lamb": 0.02, "adamw": 0.02}.get(name, 0.05)
    optimizer = make_optimizer(name, model, lr=lr, weight_decay=1e-4, **options)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=150)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]


def test_torch_optimizers_are_fused_by_default():
    assert make_optimizer("sgd", nn.Linear(2, 2), lr=0.1).defaults["fused"]
    assert make_optimizer("adamw", nn.Linear(2, 2), lr=0.1).defaults["fused"]
    foreach = make_optimizer("adamw", nn.Linear(2, 2), lr=0.1, foreach=True)
    assert (foreach.defaults["foreach"], foreach.defaults["fused"]) == (True, None)


def test_examples_in_docstrings_and_card_run():
    modules = (optimizers, layerwise_optimizers, parameter_groups_module)
    failed, tried = map(sum, zip(*map(doctest.testmod, modules), strict=True))
    assert (failed, tried > 5) == (0, True)
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/cards/optimizers.md").read_text(), re.DOTALL
    )
    for block in blocks:
        exec(compile(block, "docs/cards/optimizers.md", "exec"), {})
    assert blocks


# Two processes.

CASES = {
    "lars": (LARS, {**lars("paper", **ETAS)[1], "max_grad_norm": 0.3}),
    "lars optax nesterov": (LARS, {**lars("optax", **ETAS)[1], "nesterov": True}),
    "lamb": (LAMB, lamb("nvidia", max_grad_norm=0.3)[1]),
}
DATA_STEPS = 6
SCENARIOS = ("ddp", "fully_shard", "zero", "shard_group", "dtensor")


def small_model():
    torch.manual_seed(0)  # odd sizes: shards are uneven
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batch(step, rank=None):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return x if rank is None else x[4 * rank : 4 * rank + 4]


def fit(model, optimizer, rank=None, before_step=lambda step: None):
    for step in range(DATA_STEPS):
        optimizer.zero_grad()
        (model(batch(step, rank)) ** 2).sum(1).mean().backward()
        before_step(step)
        optimizer.param_groups[0]["lr"] = 0.05 * (step + 1)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def run_ddp(rank, kind, options):
    model = nn.parallel.DistributedDataParallel(small_model())
    return fit(model, kind(model.parameters(), lr=0.1, **options), rank)


def run_fully_shard(rank, kind, options):
    from torch.distributed.fsdp import fully_shard

    model = small_model()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=MESH)
    optimizer = kind(model.parameters(), lr=0.1, **options)

    def reload(step):
        if step == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer.state.clear()
            optimizer.load_state_dict(state)

    return [p.full_tensor() for p in fit(model, optimizer, rank, reload)]


def run_zero(rank, kind, options):
    from torch import distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(small_model())
    more = {"partition_group": dist.group.WORLD, "lr": 0.1, **options}
    return fit(model, ZeroRedundancyOptimizer(model.parameters(), kind, **more), rank)


def run_shard_group(rank, kind, options, group="world"):
    """Every rank updates its part of each flattened tensor, then all parts are gathered."""
    from torch import distributed as dist

    model, group = small_model(), dist.group.WORLD if group else None
    cut = lambda x: x.detach().flatten().tensor_split([3])[rank].clone()  # noqa: E731
    parts = [nn.Parameter(cut(p)) for p in model.parameters()]
    optimizer = kind(parts, lr=0.1, shard_group=group, **options)

    def gather(*_):
        for p, part in zip(model.parameters(), parts, strict=True):
            both = [torch.zeros(3), torch.zeros(p.numel() - 3)]
            both = [b.double() for b in both]
            for source in (0, 1):
                both[source].copy_(part.detach()) if source == rank else None
                dist.broadcast(both[source], source)
            p.data.copy_(torch.cat(both).reshape(p.shape))

    def spread(_):
        for p, part in zip(model.parameters(), parts, strict=True):
            part.grad = cut(p.grad)
            p.grad = None

    optimizer.register_step_post_hook(gather)
    return fit(model, optimizer, None, spread)


def run_dtensor(rank, kind, options):
    """Sharded by columns, replicated, and with gradients that are placed differently."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    model = small_model()
    where = [Shard(1), Replicate(), Shard(0), Shard(0)]
    whole = list(model.parameters())
    parts = [
        nn.Parameter(distribute_tensor(p.detach().clone(), MESH, [w]))
        for p, w in zip(whole, where, strict=True)
    ]
    optimizer = kind(parts, lr=0.1, **options)

    def spread(step):
        for p, part, w in zip(whole, parts, where, strict=True):
            part.grad = distribute_tensor(p.grad, MESH, [Replicate() if step % 2 else w])
            p.grad = None

    def gather(*_):
        for p, part in zip(whole, parts, strict=True):
            p.data.copy_(part.detach().full_tensor())

    optimizer.register_step_post_hook(gather)
    return fit(model, optimizer, None, spread)


def main(rank, folder):
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    global MESH
    MESH = init_device_mesh("cpu", (2,))
    ends = {}
    for case, (kind, options) in CASES.items():
        for scenario in SCENARIOS:
            ends[scenario, case] = globals()[f"run_{scenario}"](rank, kind, options)
        ends["local norms", case] = run_shard_group(rank, kind, options, group=None)
    model = small_model()
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=MESH)
    fused = make_optimizer("adamw", model, lr=0.1)
    ends["fused adamw"] = [p.full_tensor() for p in fit(model, fused, rank)]
    torch.save(ends, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
    os._exit(0)  # the mesh keeps the group, whose threads may abort a process that shuts down


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [rank.communicate(timeout=900)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_equal_one(two_ranks, scenario, case):
    kind, options = CASES[case]
    model = small_model()
    want = fit(model, kind(model.parameters(), lr=0.1, **options))
    for ends in two_ranks:
        assert distance(ends[scenario, case], want) < 1e-12
    assert distance(want, small_model().parameters()) > 1e-2


@pytest.mark.parametrize("case", CASES)
def test_local_norms_would_be_seen(two_ranks, case):
    """The comparison above is sharp: without the process group, the shards go elsewhere."""
    assert distance(two_ranks[0]["local norms", case], two_ranks[0]["shard_group", case]) > 1e-3


def test_fused_adamw_takes_sharded_models(two_ranks):
    model = small_model()
    want = fit(model, make_optimizer("adamw", model, lr=0.1))
    assert distance(two_ranks[0]["fused adamw"], want) < 1e-12


def test_a_scaler_may_leave_out_the_first_step_of_fused_sgd() -> None:
    """Torch would go on with momenta that it has not filled."""
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, first in zip(models, (math.inf, None), strict=True):
        optimizer = make_optimizer("sgd", model, lr=0.1, momentum=0.9)
        assert optimizer.param_groups[0]["fused"]
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (first, 1.0, 2.0):
            if factor is not None:
                loss = model(torch.ones(5, 3)).sum() * factor
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if factor is first and first is not None:
                kept = [state["momentum_buffer"] for state in optimizer.state.values()]
                assert [(len(kept), bool(m.any())) for m in kept] == [(2, False)] * 2
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
