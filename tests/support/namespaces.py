"""Two machines, as far as their networks go: Linux network namespaces, joined by a cable.

Each also has a decoy: an interface that is there first, has an address and the default route, and
leads nowhere, as a management network does for another machine's ranks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Machine:
    """One of the two: a command that starts another one on it, and its address on the cable."""

    within: tuple[str, ...]
    address: str


@dataclass(frozen=True)
class Network:
    first: Machine
    second: Machine
    cable: str


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _join(names: list[str], addresses: list[str], cable: str, decoy: str) -> None:
    """Make both namespaces with their decoys, and lay the cable."""
    for name, nowhere in zip(names, ("192.0.2", "198.51.100"), strict=True):
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", decoy, "type", "veth", "peer", "name", "end0")
        _ip("-n", name, "address", "add", f"{nowhere}.1/24", "dev", decoy)
        for interface in ("lo", decoy, "end0"):
            _ip("-n", name, "link", "set", interface, "up")
        _ip("-n", name, "route", "add", "default", "via", f"{nowhere}.254", "dev", decoy)
    one, other = names
    _ip("-n", one, "link", "add", cable, "type", "veth", "peer", "name", cable, "netns", other)
    for name, address in zip(names, addresses, strict=True):
        _ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
        _ip("-n", name, "link", "set", cable, "up")


@contextlib.contextmanager
def network(cable: str = "cable0", decoy: str = "decoy0") -> Iterator[Network]:
    """Both machines; skips the test where namespaces cannot be made."""
    names = [f"autotune-{os.getpid()}-{i}" for i in (1, 2)]
    addresses = [f"10.213.7.{i}" for i in (1, 2)]
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip")
    try:
        try:
            _join(names, addresses, cable, decoy)
        except OSError as error:
            pytest.skip(f"cannot make network namespaces: {error}")
        machines = [
            Machine(("ip", "netns", "exec", name), address)
            for name, address in zip(names, addresses, strict=True)
        ]
        yield Network(machines[0], machines[1], cable)
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                _ip("netns", "delete", name)
