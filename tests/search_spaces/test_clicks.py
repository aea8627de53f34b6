"""The recipe of clicks: its target lies below the best AUC, and its keys under their conditions."""

from __future__ import annotations

from search_spaces.clicks import SETTING, generated
from trainers.click_settings import KNOBS, UPDATES
from trainers.data.clicks import best_auc

CONDITIONAL = {
    "synchronous": set(),
    "asynchronous": {"staleness_bound"},
    "geo_sgd": {"push_every"},
    "hogwild": {"push_every", "hogwild_workers"},
}


def test_the_best_auc_is_known_and_above_the_target() -> None:
    best = best_auc(SETTING["train_size"], SETTING["val_size"], SETTING["hash_size"])
    assert round(best, 3) == 0.856
    assert generated().target.value < best - 0.04


def test_each_way_of_updating_has_its_own_keys() -> None:
    space, seen = generated().space, set()
    for point in space.sample(80, seed=3):
        config = space.config(point)
        update = config["sparse_update"]
        own = {*config} & ({*KNOBS} - {"sparse_update", "optimizer_sparse"})
        assert own == CONDITIONAL[update]
        assert config["width"] == 8
        seen.add(update)
    assert seen == {*UPDATES}
