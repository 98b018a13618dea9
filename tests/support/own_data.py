"""Data sets of a user, as source text that a test writes into a folder of its own."""

import sys
from pathlib import Path

import pytest

LISTED = """
import torch

class Listed(torch.utils.data.Dataset):
    num_classes = 3
    def __init__(self, items):
        self.items = items
    def __len__(self):
        return len(self.items)
    def __getitem__(self, i):
        if isinstance(self.items[i], Exception):
            raise self.items[i]
        return self.items[i]

def numbered(targets):
    return [(torch.tensor([float(i)]), target) for i, target in enumerate(targets)]
"""
"""A data set of listed items, which may be errors, and items whose inputs are their ids."""


def enter_folder(path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> Path:
    """Work in this folder with these modules in it, imported by no earlier test, and with its own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, source in modules.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        (path / f"{name}.py").write_text(source)
    monkeypatch.chdir(path)
    return path
