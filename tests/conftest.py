"""What the tests share: support modules for workers too, one small Ray, folders and an order."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from lender import Lender
    from services import Tracking

SUPPORT = str(Path(__file__).parent / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

SLOW = [HealthCheck.too_slow]  # how busy the machine is decides no test
settings.register_profile("autotune", deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("autotune")

# Locks of cores, Ray's sockets and temporary files: each test process has its own (short) folder,
# so that several of them run beside each other, and beside whatever else this machine does.
PRIVATE = tempfile.mkdtemp(prefix="at-", dir="/tmp")
os.environ["TMPDIR"] = PRIVATE
tempfile.tempdir = None

# In the background of a script they ignore Ctrl-C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Under `nohup` the same of SIGHUP. A handler, unlike an ignored signal, is not passed on to them.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# A Ray that is started gives up after 15 s by itself, which is not much where a machine is busy.
# Groups start processes of their own: none need be there beforehand.
os.environ |= {
    "AUTOTUNE_EXPERIENCE": "off",  # nor do studies that were run here before
    "AUTOTUNE_MACHINE_LOAD": "off",  # how busy the machine is decides no test
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "900000",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_start_wait_time_s": "900",
}

# What tests compare, to the last bit in places, is computed on CPUs; `tests/gpu` sees the GPUs.
if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
    os.environ.setdefault("AUTOTUNE_TEST_GPUS", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# After `multiprocessing` (priority -100) has removed its own folder below this one.
multiprocessing.util.Finalize(None, shutil.rmtree, (PRIVATE, True), exitpriority=-200)


# The quick tests of these files want Ray, or two ranks: one process starts them, and runs them all.
# Of slow ones, all files that name Ray's fixtures are together (`_names_ray`).
_ON_RAY = ("checkpoints", "cli", "export", "ray")
_ON_TWO_RANKS = (
    *("adascale", "averaging", "clicks", "compression_of_gradients", "divided", "language"),
    *("memory", "noise_scale", "ranks", "sharding", "sizes", "statistics"),
)
_TOGETHER = dict.fromkeys(_ON_RAY, "on Ray") | dict.fromkeys(_ON_TWO_RANKS, "on two ranks")
_STARTED = {"ray_address", "on_two_ranks", "on_ranks"}

_RAY = contextlib.ExitStack()  # what is there of Ray, and ends with it
_AFTER_RAY: set[str] = set()  # of the slow tests, those after the last that wants Ray


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file, but for tests that share what is slow to start, which stay together."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            if _only_slow(config):
                return "on Ray" if _names_ray(config.rootpath / file) else file
            return _TOGETHER.get(Path(file).stem[5:], file) if quick else file

    quick = "not slow" in config.option.markexpr
    return Files(config, log) if config.option.dist == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the slow tests alone: files that have none are not imported, which takes seconds."""
    if not _only_slow(config) or not collection_path.match("test_*.py"):
        return None
    return True if "slow" not in collection_path.read_text() else None


def _only_slow(config: pytest.Config) -> bool:
    return config.option.markexpr in ("slow", "slow and not soak")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Nothing that is there now is looked through again by each collection of garbage."""
    if _only_slow(session.config) and not getattr(session.config.option, "loadscopereorder", False):
        end = max((n for n, i in enumerate(session.items, 1) if _names_ray(i.path)), default=0)
        _AFTER_RAY.update(item.nodeid for item in session.items[end:])
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """An idle Ray is never quite idle: it ends before the first test after all that want it.

    Each test process has its tests in the order in which they were collected, file by file.
    """
    if item.nodeid in _AFTER_RAY:
        _RAY.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files whose tests wait for processes come first: the quick ones then fill the gaps."""
    files = {i.path for i in items if _STARTED.intersection(getattr(i, "fixturenames", ()))}
    on_ray = _names_ray if _only_slow(config) else lambda _: False
    items.sort(key=lambda item: (not on_ray(item.path), item.path not in files))


@cache
def _names_ray(path: Path) -> bool:
    """Whether tests of a file, perhaps quick ones, want the Ray of this process."""
    text = path.read_text()
    return "ray_address" in text or "bare_ray" in text


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A temporary folder in memory, for tests that write thousands of lines."""
    from sims import memory

    with memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A Ray of two CPUs on this machine, started once; `RayPool` joins it and leaves it be.

    Pools of this process get worker groups that are warm already (`lender.py`).
    """
    with _RAY:
        address = _RAY.enter_context(_ray())
        _RAY.enter_context(_lender().lending())
        yield address


@pytest.fixture
def bare_ray(ray_address: str) -> Iterator[str]:
    """The same Ray with all its room free, and no warm groups: for drivers in other processes."""
    with _lender().away():
        yield ray_address


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tracking store without experiments, made once: MLflow needs seconds for it.

    It is to be copied: all test processes have the same one.
    """
    place = tmp_path_factory.getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    path = place / "empty-store.db"
    with open(place / "empty-store.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            from mlflow import MlflowClient

            made = tmp_path_factory.mktemp("store") / "mlflow.db"
            MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments()
            shutil.copy(made, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
    return path


@pytest.fixture(scope="session")
def with_store(empty_store: Path) -> Callable[[Path], Path]:
    """Makes a new study's folder in which the store of its view is already."""

    def make(folder: Path) -> Path:
        folder.mkdir(parents=True)
        shutil.copy(empty_store, folder / "mlflow.db")
        return folder

    return make


@pytest.fixture(scope="session")
def mlflow_server(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path
) -> Iterator[Tracking]:
    """An MLflow server without a password, for studies of different names."""
    import services

    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    server = services.Tracking(folder, f"sqlite:///{folder}/mlflow.db")
    yield server
    server.stop()


@contextlib.contextmanager
def _ray() -> Iterator[str]:
    """A head with only the processes that trials need, and this process connected to it."""
    import nodes
    import ray

    with nodes.cluster(cpus=2) as made:
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield made.address
        finally:
            ray.shutdown()


def _lender() -> Lender:
    import lender

    return lender.LENDER
