"""Names of what decides whose modules are slow to import: to check and complete them without that.

Those of Optuna's samplers are in `samplers.optuna_names`, those of pruners in `pruners.rules`.
"""

from __future__ import annotations

POLICIES = ("policy", "policy:actor", "policy:reinforce", "policy:ppo")
"""The samplers that learn a policy."""
CONTROLLERS = ("policy", "regulator")
"""The controllers of knobs."""
POPULATIONS = ("pbt",)
"""The controllers that fork; `autotune.run` builds them for its experiment."""
