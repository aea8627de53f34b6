"""How long a rank waits for its cores: from files like the kernel's, and from looks by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from autotune.backends.machine_load import SWITCH
from autotune.backends.worker.cpu_wait import Look, Wait, WaitMeter, Waits, look, waited, waits
from autotune.backends.worker.gpu_use import Slowed

LOOKS = 1000


def process(
    proc: Path,
    number: int,
    threads: Mapping[int, tuple[float, float]],
    children: Sequence[int],
    nice: int = 0,
) -> Path:
    """The folder of a process whose threads ran and waited for so many seconds."""
    folder = proc / str(number)
    for thread, times in threads.items():
        own = folder / "task" / str(thread)
        own.mkdir(parents=True)
        counted = " ".join(str(round(seconds * 1e9)) for seconds in times)
        (own / "schedstat").write_text(f"{counted} 17\n")
        (own / "children").write_text(" ".join(map(str, children)) if thread == number else "")
    (folder / "schedstat").write_text((folder / "task" / str(number) / "schedstat").read_text())
    ticks = round(sum(ran for ran, _ in threads.values()) * os.sysconf("SC_CLK_TCK"))
    (folder / "stat").write_text(f"{number} (a (b) c) S {'0 ' * 10}{ticks} 0 0 0 20 {nice} 1 0\n")
    return folder


def test_waits_are_those_of_threads_and_of_the_data_loaders(tmp_path: Path) -> None:
    process(tmp_path, 20, {20: (2.0, 1.5), 21: (1.0, 9.0)}, [])
    process(tmp_path, 30, {30: (0.5, 7.0)}, [], nice=19)  # works in the background, as the mirror
    children = [20, 30, 99]  # the last has just ended
    own = process(tmp_path, 10, {10: (8.0, 2.0), 11: (4.0, 0.25)}, children)
    seen = waits(own)
    assert seen is not None
    assert seen.threads == pytest.approx({"10": 2.0, "11": 0.25})
    assert seen.children == pytest.approx({"20": 1.5})
    assert seen.children_cpu == pytest.approx(3.5)


def test_where_the_kernel_counts_no_waits_there_are_none(tmp_path: Path) -> None:
    assert waits(tmp_path / "10") is None
    (tmp_path / "10" / "task" / "10").mkdir(parents=True)
    assert waits(tmp_path / "10") is None


def test_this_process_is_seen_on_any_system() -> None:
    first = look()
    end = sum(range(10**5))
    second = look()
    assert end
    assert second.at > first.at
    assert second.cpu >= first.cpu
    assert second.used >= first.used


def test_a_process_that_this_one_started_is_seen_as_its_child() -> None:
    here = Path("/proc/self/task")
    if not here.is_dir() or waits(Path("/proc/self").resolve()) is None:
        pytest.skip("the kernel counts no waits")
    if not (here / str(os.getpid()) / "children").exists():
        pytest.skip("the kernel lists no children")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        seen = waits(Path("/proc/self").resolve())
        for _ in range(LOOKS):  # the kernel may leave one out while another child ends
            if seen is None or str(child.pid) in seen.children:
                break
            seen = waits(Path("/proc/self").resolve())
        assert child.stdin is not None
        child.stdin.close()
    assert seen is not None
    assert str(child.pid) in seen.children


def test_children_of_the_main_thread_are_seen_after_the_kernels_numbers_began_anew(
    tmp_path: Path,
) -> None:
    process(tmp_path, 20, {20: (2.0, 1.5)}, [])
    threads = {900: (1.0, 0.5), 901: (1.0, 0.5), 902: (1.0, 0.5), 12: (1.0, 0.5)}
    seen = waits(process(tmp_path, 900, threads, [20]))
    assert seen is not None
    assert seen.children == pytest.approx({"20": 1.5})


# --- between two looks ----------------------------------------------------------------------------


def at(seconds: float, cpu: float, used: float, *own: float, child: float = 0.0) -> Look:
    """A look at a process whose threads have waited so long."""
    threads = {str(n): wait for n, wait in enumerate(own)}
    return Look(seconds, Waits(threads, {"c": child}) if own else None, cpu, used)


NEVER = at(0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("now", "waiting", "others"),
    [
        (at(10, 10.0, 10.0, 0.0, 0.0), 0.0, 0.0),  # alone
        (at(10, 5.0, 10.0, 5.0, 1.0), 5.0, 5.0),  # half of a core
        (at(10, 10.0, 10.0, 5.0, 6.0), 6.0, 0.0),  # its own threads wait for each other
        (at(10, 2.0, 8.0, 0.0, 0.0), 0.0, 6.0),  # it waits for its data, as others compute
        (at(10, 10.0, 9.9, 0.0, 0.0), 0.0, 0.0),  # the system counts in hundredths
        (at(10, 2.0, 8.0, 0.0, child=5.0), 3.0, 6.0),  # its loader waits, and it for the loader
    ],
)
def test_what_was_waited_and_what_others_used(now: Look, waiting: float, others: float) -> None:
    assert waited(NEVER, now, 0.3, 1, lambda: 0.0) == pytest.approx((waiting, others))


@pytest.mark.parametrize(
    ("cpu", "cores", "busy", "waiting"),
    [
        (10.0, 1, 0.9, 0.0),  # it had its core, however busy the machine
        (4.0, 1, 0.0, 0.0),  # it waited for its data, as the machine is idle
        (4.0, 1, 0.9, 6.0),
        (4.0, 1, 0.5, 5.0),  # no more than the machine's pressure says
        (8.0, 2, 0.9, 6.0),
    ],
)
def test_without_the_kernels_count_cpu_seconds_and_pressure_must_agree(
    cpu: float, cores: int, busy: float, waiting: float
) -> None:
    before, now = Look(0.0, None, 0.0, 0.0), Look(10.0, None, cpu, 20.0)
    assert waited(before, now, 0.0, cores, lambda: busy)[0] == pytest.approx(waiting)


class Rank:
    """A rank that is measured on a clock of its own."""

    def __init__(self, slowed: Slowed = Slowed()) -> None:  # noqa: B008
        self.now = self.cpu = self.used = self.wait = 0.0
        self.looks = 0
        self.meter = WaitMeter(1, lambda: slowed, self.see, lambda: 0.0, lambda: self.now, on=True)

    def see(self) -> Look:
        self.looks += 1
        return at(self.now, self.cpu, self.used, self.wait)

    def runs(self, seconds: float, share: float = 1.0) -> None:
        """It computes on a core of which others take the rest."""
        self.now += seconds
        self.used += seconds
        self.cpu += share * seconds
        self.wait += (1 - share) * seconds

    def trains(self, seconds: float, share: float = 1.0) -> Wait:
        begin = self.meter.begin()
        self.runs(seconds, share)
        wait = self.meter.waited(self.meter.end() - begin, 0.0)
        assert wait is not None
        return wait


def test_evaluation_is_no_part_of_what_training_waited() -> None:
    rank = Rank()
    assert rank.trains(4.0).seconds == 0.0
    rank.runs(5.0, 0.1)
    assert rank.trains(4.0, 0.5).seconds == pytest.approx(2.0)
    assert rank.trains(2.0).seconds == 0.0


def test_a_script_that_is_a_process_of_its_own_waits_for_its_cores_itself() -> None:
    rank = Rank()
    see = lambda: at(rank.now, rank.cpu, rank.used, 0.0, child=rank.wait)  # noqa: E731
    for in_child, waiting in ((False, 0.0), (True, 3.0)):
        rank.meter = WaitMeter(1, Slowed, see, clock=lambda: rank.now, on=True, in_child=in_child)
        assert rank.trains(4.0, 0.25).seconds == pytest.approx(waiting)


def test_many_short_steps_are_looked_at_together() -> None:
    rank = Rank()
    total = 0.0
    for _ in range(1000):
        total += rank.trains(0.01, 0.25).seconds
        rank.runs(0.01, 0.25)  # it evaluates
    assert rank.looks < 250
    assert total == pytest.approx(1000 * 0.0075, rel=0.05), "half of the time was training"


def test_the_set_up_before_the_first_milestone_is_not_training() -> None:
    rank = Rank()
    rank.meter.begin()
    rank.runs(30.0, 0.2)
    rank.meter.end()
    assert rank.trains(3.0).seconds == 0.0


def test_a_gpu_that_others_use_counts_as_waiting_and_says_why() -> None:
    rank = Rank(Slowed(0.5, "another process on its GPU"))
    assert rank.trains(4.0) == Wait(pytest.approx(2.0), "another process on its GPU")


def test_nothing_is_measured_where_the_machine_is_not_to_be_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "off")
    rank = Rank()
    rank.meter = WaitMeter(1, Slowed, rank.see)
    rank.meter.begin()
    rank.meter.end()
    assert rank.meter.waited(5.0, 0.0) is None
    assert rank.looks == 0


BESIDE = """
import os, sys, time
from autotune.backends.worker.cpu_wait import WaitMeter
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if not os.fork():  # a process that is nobody's child computes on the same core
    if not os.fork():
        end = time.monotonic() + 4
        while time.monotonic() < end and os.getppid():
            pass
    os._exit(0)
os.wait()
meter = WaitMeter(1, on=True)
begin, cpu = meter.begin(), time.process_time()
while time.process_time() - cpu < 0.8:
    pass
trained = meter.end() - begin
used = time.process_time() - cpu
print(trained, used, meter.waited(trained, 0.0).seconds)
"""


def test_a_rank_that_computes_waits_whenever_it_has_no_cpu_time() -> None:
    """On any machine: its seconds are those of its core, and those in which others have it."""
    if waits(Path("/proc/self").resolve()) is None:
        pytest.skip("the kernel counts no waits")
    done = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    trained, used, waiting = map(float, done.stdout.split())
    assert waiting / trained == pytest.approx(1 - used / trained, abs=0.15)
