"""Preparations for torch, made when somebody imports it; a small module stands in for it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from autotune.backends.worker import torch_import


def test_each_of_several_preparations_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two studies in one process, whose trainers do without torch."""
    (tmp_path / "heavy_as_torch.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch_import, "_NAME", "heavy_as_torch")
    monkeypatch.setattr(sys, "meta_path", before := list(sys.meta_path))
    there, made = list(before), list[str]()
    forget = [
        torch_import.when_imported(lambda name=name: made.append(name))
        for name in ("first", "second", "that of a study that is over")
    ]
    forget[2]()
    try:
        assert importlib.import_module("heavy_as_torch").VALUE == 1
        assert sorted(made) == ["first", "second"]
        assert sys.meta_path == there
        torch_import.when_imported(lambda: made.append("third"))
        assert made[-1] == "third"
    finally:
        sys.modules.pop("heavy_as_torch", None)
