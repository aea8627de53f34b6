"""The recorded mutants: small faults that the tests of their part must find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One fault: in `file`, the text `before`, which occurs there once, becomes `after`.

    Args:
        name: what goes wrong, in a few words.
        part: a key of `TESTS`.
        file: path below the repository's root.
    """

    name: str
    part: str
    file: str
    before: str
    after: str

    @property
    def tests(self) -> tuple[str, ...]:
        """The test paths of its part."""
        return TESTS[self.part]


TESTS: dict[str, tuple[str, ...]] = {
    "loop": (
        "tests/trial/test_trial.py",
        "tests/study/driver/test_microbatch.py",
        "tests/study/driver/test_loop.py",
        "tests/study/driver/test_resume.py",
    ),
    "journal": (
        "tests/storage/test_journal.py",
        "tests/storage/test_retention.py",
        "tests/storage/test_sweep.py",
    ),
    "samplers": (
        "tests/algorithms/samplers/test_gaussian_process.py",
        "tests/algorithms/samplers/test_feasibility.py",
        "tests/algorithms/samplers/test_convergence.py",
        "tests/algorithms/samplers/test_optuna.py",
    ),
    "ranking": ("tests/algorithms/ranking", "tests/study/test_confirm.py"),
    "space": ("tests/space",),
    "schedules": ("tests/schedules",),
    "tracking": (
        "tests/tracking/test_sync.py",
        "tests/tracking/test_projection.py",
        "tests/tracking/test_mlflow_store.py",
        "tests/tracking/test_mlflow_reader.py",
    ),
    "trainers": (
        "tests/trainers/test_knobs.py",
        "tests/trainers/test_statistics.py",
        "tests/trainers/test_optimizers.py",
    ),
}
"""The test paths of each part, the quickest first: unit tests and those on a virtual clock."""

_DECISIONS = "autotune/study/driver/decisions.py"
_JOURNAL = "autotune/storage/journal.py"
_RANKING = "autotune/algorithms/ranking"
_SAMPLERS = "autotune/algorithms/samplers"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a target met at the limit counts",
        "loop",
        "autotune/trial/target.py",
        "report.seconds < self.limit",
        "report.seconds <= self.limit",
    ),
    Mutant(
        "baselines are pruned",
        "loop",
        _DECISIONS,
        'trial.kind in ("baseline", PROBE) or ',
        "trial.kind == PROBE or ",
    ),
    Mutant(
        "one failure among the last ends the study",
        "loop",
        "autotune/algorithms/ranking/trial_index.py",
        "all(t.state is State.FAILED for",
        "any(t.state is State.FAILED for",
    ),
    Mutant(
        "one retry too many",
        "loop",
        "autotune/study/driver/recovery.py",
        "trial.retries < ",
        "trial.retries <= ",
    ),
    Mutant(
        "one trial too many",
        "loop",
        "autotune/study/driver/loop.py",
        "count < self.settings.trials",
        "count <= self.settings.trials",
    ),
    Mutant(
        "the report at the checkpoint is dropped when a trial restarts",
        "loop",
        "autotune/trial/events.py",
        "if r.step <= step)",
        "if r.step < step)",
    ),
    Mutant("no flush to disk", "journal", _JOURNAL, "sync_content(self._file.fileno())", "pass"),
    Mutant(
        "a torn last line stays in the journal",
        "journal",
        _JOURNAL,
        "if end < len(data):",
        "if end > len(data):",
    ),
    Mutant(
        "half a line stays after a failed write",
        "journal",
        _JOURNAL,
        "self._file.truncate(end)",
        "pass",
    ),
    Mutant(
        "the root of checkpoints can be removed",
        "journal",
        "autotune/storage/retention.py",
        "place != home and ",
        "",
    ),
    Mutant(
        "the kernel's distances are wrong",
        "samplers",
        f"{_SAMPLERS}/gaussian_process.py",
        "2 * a @ b.T",
        "a @ b.T",
    ),
    Mutant(
        "what is infeasible is learned as feasible",
        "samplers",
        f"{_SAMPLERS}/feasibility.py",
        "-np.ones(len(bad))",
        "np.ones(len(bad))",
    ),
    Mutant(
        "the policy steps away from the elite",
        "samplers",
        f"{_SAMPLERS}/distribution.py",
        "means[name] += own",
        "means[name] -= own",
    ),
    Mutant(
        "constraints have the wrong sign for Optuna",
        "samplers",
        f"{_SAMPLERS}/optuna.py",
        "1.0 if infeasible else -1.0",
        "-1.0 if infeasible else 1.0",
    ),
    Mutant(
        "equal-time ranks in reverse",
        "ranking",
        f"{_RANKING}/equal_time.py",
        "lost = (own > own.T)",
        "lost = (own < own.T)",
    ),
    Mutant(
        "a leader is raced once too often",
        "ranking",
        f"{_RANKING}/racing.py",
        "1 + len(_own_races(leader, races)) >= MOST",
        "1 + len(_own_races(leader, races)) > MOST",
    ),
    Mutant(
        "one finalist too many",
        "ranking",
        f"{_RANKING}/finalists.py",
        "< top and ",
        "<= top and ",
    ),
    Mutant(
        "ties of usual hardware go to the last one",
        "ranking",
        f"{_RANKING}/trial_index.py",
        "-self._first[h]",
        "self._first[h]",
    ),
    Mutant(
        "the grid of whole numbers begins at 0",
        "space",
        "autotune/space/parameters.py",
        "(value - self.low) % self.step",
        "value % self.step",
    ),
    Mutant(
        "neighbouring knots can be equal",
        "space",
        "autotune/space/knotted_schedules.py",
        "number >= indices[-1]",
        "number > indices[-1]",
    ),
    Mutant(
        "a momentum of 1 is allowed",
        "space",
        "autotune/space/coupling.py",
        "0 <= low <= high < 1",
        "0 <= low <= high <= 1",
    ),
    Mutant(
        "the effective learning rate has the wrong sign",
        "schedules",
        "autotune/schedules/compose.py",
        "1.0 - self.momentum._at(x)",
        "1.0 + self.momentum._at(x)",
    ),
    Mutant(
        "rounding may overshoot the end",
        "schedules",
        "autotune/schedules/formulas.py",
        "min(value, end) if start <= end",
        "max(value, end) if start <= end",
    ),
    Mutant(
        "schedules that differ a little mean the same",
        "schedules",
        "autotune/schedules/analysis.py",
        "rel_tol=10.0**-_DIGITS",
        "rel_tol=1e-3",
    ),
    Mutant(
        "the speedup is the wrong way round",
        "tracking",
        "autotune/tracking/run_content.py",
        'return {"speedup_vs_baseline": other / own}',
        'return {"speedup_vs_baseline": own / other}',
    ),
    Mutant(
        "runs that a store has lost are not written again",
        "tracking",
        "autotune/tracking/sync.py",
        "if lost or not store.runs:",
        "if not store.runs:",
    ),
    Mutant(
        "tags that changed are not sent",
        "tracking",
        "autotune/tracking/sync.py",
        "if sent.tags.get(k) != v",
        "if k not in sent.tags",
    ),
    Mutant(
        "factors of the learning rate replace each other",
        "trainers",
        "trainers/knobs.py",
        "self._lr_factor *= ",
        "self._lr_factor = ",
    ),
    Mutant(
        "the first step is sampled, not the eighth",
        "trainers",
        "trainers/statistics.py",
        "self._step % EVERY == 0",
        "self._step % EVERY == 1",
    ),
    Mutant(
        "gradients within the norm are scaled up",
        "trainers",
        "trainers/optimizers/layerwise.py",
        "torch.clamp(limit / factor, max=1.0)",
        "(limit / factor)",
    ),
)
