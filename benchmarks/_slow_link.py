"""Ranks of one machine on a slow network: Linux network namespaces, joined by a cable with a limit.

The limit is real: both ends of a veth pair let through so many bits a second (`tc ... tbf`), and
hold up the rest. A burst of a few kB is let through at once; a large one would flatter short
messages. It needs root and the programs `ip` and `tc`. What is made is removed by its name, also
after an error or an interrupt. Benchmarks and tests share it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

INTERFACE = "slow0"
_ADDRESSES = ("10.213.8.1", "10.213.8.2")
_BURST, _LATENCY = "16kb", "400ms"
_PORT = 29500  # of its own network
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Link:
    """A network on which ranks find each other.

    Args:
        spaces: the two namespaces; none: this machine's own loopback.
        interface: gloo's.
        address: of the first rank.
        port: where it listens.
    """

    spaces: tuple[str, ...]
    interface: str
    address: str
    port: int

    def command(self, rank: int, ranks: int) -> list[str]:
        """What starts a program where this rank is; the first half is on one side."""
        if not self.spaces:
            return []
        return ["ip", "netns", "exec", self.spaces[rank * len(self.spaces) // ranks]]

    def environment(self, rank: int, ranks: int) -> dict[str, str]:
        """The variables of a rank, as `torchrun` would set them."""
        return {
            "GLOO_SOCKET_IFNAME": self.interface,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "WORLD_SIZE": str(ranks),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }

    def sent(self) -> int:
        """Bytes that the first side has sent over the cable, with all headers."""
        said = _run("ip", "-n", self.spaces[0], "-s", "-j", "link", "show", self.interface)
        return int(json.loads(said)[0]["stats64"]["tx"]["bytes"])


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def loopback() -> Link:
    """This machine's own network, which has no limit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Link((), "lo", "127.0.0.1", free.getsockname()[1])


def is_speed(mbit: float) -> bool:
    """Whether a cable may have so many Mbit/s."""
    return 0 < mbit < math.inf


def network(mbit: float | None) -> contextlib.AbstractContextManager[Link]:
    """A cable of so many Mbit/s, see `slow_link`; None: loopback."""
    return contextlib.nullcontext(loopback()) if mbit is None else slow_link(mbit)


@contextlib.contextmanager
def slow_link(mbit: float) -> Iterator[Link]:
    """A cable of so many Mbit/s, which is removed in the end.

    Raises:
        ValueError: a speed that is none.
        OSError: no root, no `ip` or `tc`, or namespaces that cannot be made; one line.
    """
    if not is_speed(mbit):
        raise ValueError(f"mbit must be a finite number more than 0, got {mbit}")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise OSError(f"needs the program {program} (iproute2)")
    if os.geteuid():
        raise OSError("needs root, to make network namespaces")
    names = tuple(f"autotune-slow-{os.getpid()}-{side}" for side in (1, 2))
    with _ends_on(signal.SIGTERM, signal.SIGHUP):
        try:
            _lay(names, mbit)
            yield Link(names, INTERFACE, _ADDRESSES[0], _PORT)
        finally:
            for name in names:  # with the cable, which is in them
                with contextlib.suppress(OSError):
                    _run("ip", "netns", "delete", name)


def lacking(mbit: float) -> str:
    """Why no cable of so many Mbit/s can be made here; an empty string where one can."""
    try:
        with slow_link(mbit):
            return ""
    except (OSError, ValueError) as error:
        return str(error)


def options_with_cable(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options and `--mbit`; where that cable cannot be made, say why and exit with 2."""
    parser.add_argument("--mbit", type=float, help="the speed of a cable (none: loopback)")
    options = parser.parse_args()
    if options.mbit is not None and (reason := lacking(options.mbit)):
        parser.exit(2, f"{parser.prog}: --mbit {options.mbit:g}: {reason}\n")
    return options


def available() -> bool:
    """Whether a cable can be made here; if not, the reason is printed."""
    reason = lacking(1000)
    if reason:
        print(f"loopback only: {reason}", flush=True)
    return not reason


def _lay(names: Sequence[str], mbit: float) -> None:
    """Make both namespaces, lay the cable, and limit its ends."""
    for name in names:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    one, other = names
    ends = ("type", "veth", "peer", "name", INTERFACE, "netns", other)
    _run("ip", "-n", one, "link", "add", INTERFACE, *ends)
    for name, address in zip(names, _ADDRESSES, strict=True):
        _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
        _run("ip", "-n", name, "link", "set", INTERFACE, "up")
        limit = ("tbf", "rate", f"{mbit:g}mbit", "burst", _BURST, "latency", _LATENCY)
        _run("tc", "-n", name, "qdisc", "add", "dev", INTERFACE, "root", *limit)


@contextlib.contextmanager
def _ends_on(*signals: signal.Signals) -> Iterator[None]:
    """These signals end the body as an interrupt does, so that it cleans up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {one: signal.signal(one, end) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def answers(
    link: Link, ranks: int, arguments: Sequence[str], limit_seconds: float = 900
) -> list[Any]:
    """What a Python program says in its last line, as JSON, on each of so many ranks.

    Raises:
        RuntimeError: a rank failed; with the end of what it wrote.
    """
    with contextlib.ExitStack() as opened:
        outputs = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        errors = [opened.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        started = [
            subprocess.Popen(
                [*link.command(rank, ranks), sys.executable, *arguments],
                env={**os.environ, "OMP_NUM_THREADS": "1", **link.environment(rank, ranks)},
                stdout=outputs[rank],
                stderr=errors[rank],
            )
            for rank in range(ranks)
        ]
        try:
            failed = _first_failure(started, time.monotonic() + limit_seconds)
        finally:
            for process in started:
                process.kill()
                process.wait()
        if failed is not None:
            errors[failed].seek(0)
            raise RuntimeError(f"rank {failed} failed: {errors[failed].read()[-2000:]}")
        for output in outputs:
            output.seek(0)
        return [json.loads(output.read().splitlines()[-1]) for output in outputs]


def _first_failure(started: Sequence[subprocess.Popen[bytes]], deadline: float) -> int | None:
    """The rank that failed first, where one did before all had ended.

    Raises:
        TimeoutError: they have not ended in time.
    """
    while True:
        codes = [process.poll() for process in started]
        for rank, code in enumerate(codes):
            if code:
                return rank
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            raise TimeoutError("the ranks have not ended in time")
        time.sleep(_POLL_SECONDS)
