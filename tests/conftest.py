"""What the tests share: their support modules, importable by workers too, and one small Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

SUPPORT = str(Path(__file__).parent / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

settings.register_profile("autotune", deadline=None, print_blob=True)
settings.load_profile("autotune")


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A temporary folder in memory, for tests that write thousands of lines."""
    from sims import memory

    with memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A Ray of two CPUs on this machine, started once; `RayPool` joins it and leaves it be."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    started = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield str(started.address_info["gcs_address"])
    ray.shutdown()
