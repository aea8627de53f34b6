"""The critic: extremely randomised trees that predict the rank of a point."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from autotune.space.encoding import Encoder, rank_score
from autotune.space.search_space import SearchSpace
from autotune.trial import Params

_TREES, _DRAWN_TREES = 60, 12


class Critic:
    """Extremely randomised trees (Geurts et al. 2006) on the normal scores of trials' ranks.

    Features: every number's position in its range, one number for each option of a choice, and the
    effective learning rate lr / (1 - momentum) where the space searches both.

    Args:
        space: the search space.
        points: of trials that have ended.
        ranks: their equal-time ranks, 0 for the best and 1 for the worst.
        seed: of the trees.
    """

    def __init__(
        self, space: SearchSpace, points: Sequence[Params], ranks: Sequence[float], seed: int
    ) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        self._encoder = Encoder(space)
        self._forest = ExtraTreesRegressor(
            _TREES, min_samples_leaf=2, max_features=0.7, random_state=seed
        )
        self._forest.fit(self._rows(points), [rank_score(rank, len(ranks)) for rank in ranks])

    def choose(self, candidates: Sequence[Params], random: Random) -> int:
        """The index of the candidate with the best prediction of a random fifth of the trees.

        The trees disagree where there are few trials: this is Thompson sampling by bootstrap, and
        proposals that are made at the same time differ.
        """
        trees = random.sample(range(_TREES), _DRAWN_TREES)
        rows = self._rows(candidates)
        expected = sum(self._forest.estimators_[tree].predict(rows) for tree in trees)
        return int(expected.argmin())

    def _rows(self, points: Sequence[Params]) -> Any:
        return self._encoder.rows(points).astype("float32")  # once, and not in every tree
