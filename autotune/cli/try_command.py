"""`autotune try`: a recipe's baseline for two milestones in this process, and what was found."""

from __future__ import annotations

import json
import pdb
from dataclasses import asdict

from autotune.cli.console import BROKEN, DONE, only_json, plain_out, say
from autotune.cli.given import TryArguments

_MARKS = {True: "ok  ", False: "FAIL", None: "    "}


def run(given: TryArguments) -> int:
    """Try the recipe and print a checklist; whether nothing in it has failed is the exit code.

    Raises:
        UserError: there is no such recipe, or it is mistaken.
    """
    from autotune.evaluation.trial_run import TrainerError, try_recipe
    from autotune.study import place, recipes

    loaded = recipes.load(given.recipe, given.options.recipe_arguments)
    experiment = place.scaled(loaded, given.options, None)
    look = _post_mortem if given.pdb else None
    with only_json(given.json):
        options = given.options
        try:
            checks = try_recipe(experiment, trials=options.trials, seed=options.seed, on_error=look)
        except TrainerError as error:
            say(f"{error.trace}\nautotune: {error}")
            return BROKEN
    if given.json:
        print(json.dumps({"recipe": given.recipe, "checks": [asdict(c) for c in checks]}))
    else:
        for check in checks:
            print(f"{_MARKS[check.ok]}  {check.name}: {check.says}", file=plain_out())
    return DONE if all(check.ok is not False for check in checks) else BROKEN


def _post_mortem(error: BaseException) -> None:
    """Open the debugger where the trainer raised."""
    print(f"{type(error).__name__}: {error}")
    pdb.post_mortem(error.__traceback__)
