"""Snapshot: what an asynchronous server held a moment ago, in one file, for its next life to go on from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch

from shoal.base.errors import ShoalError
from shoal.kvstore.positions import Handed
from shoal.kvstore.table import Plan

Tensors = dict[str, torch.Tensor]


class OfTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table but for its tensors, which are called `NUMBER/values` and `NUMBER/state/NAME`."""

    number: int
    plan: Plan
    version: int
    applied: dict[int, tuple[str, int]]
    state: list[str]
    """Names of its optimizer's tensors."""


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tables: list[OfTable]
    positions: Handed
    optimizer: dict[str, Any]

    def write(self, path: Path, tensors: Tensors) -> None:
        """Whole or not at all. OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".aside")
        try:
            safetensors.torch.save_file(tensors, aside, {"shoal": msgspec.json.encode(self).decode()})
        except safetensors.SafetensorError as error:  # a full disk, too
            raise OSError(error) from None
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)

    @classmethod
    def read(cls, path: Path) -> tuple[Snapshot, Tensors]:
        """ShoalError where it is none, a damaged one, or another version's."""
        try:
            with safetensors.safe_open(path, "pt") as file:  # type: ignore[attr-defined]
                told = (file.metadata() or {}).get("shoal", "")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no dict)
            snapshot = msgspec.json.decode(told, type=cls)
        except msgspec.ValidationError as error:
            raise ShoalError(f"{path}: a snapshot of another version of Shoal ({error}); remove it") from None
        except (OSError, safetensors.SafetensorError, msgspec.DecodeError) as error:
            raise damaged(path, error) from None
        for table in snapshot.tables:
            name, plan = f"{table.number}/values", table.plan
            wanted = (plan.layout.kind, (plan.high - plan.low,))
            if name not in tensors or (tensors[name].dtype, tuple(tensors[name].shape)) != wanted:
                raise damaged(path, f"no {name} of {wanted[1][0]:,} numbers")
            if missing := [name for name in table.state if f"{table.number}/state/{name}" not in tensors]:
                raise damaged(path, f"no {table.number}/state/{missing[0]}")
        return snapshot, tensors


def damaged(path: Path, why: object) -> ShoalError:
    return ShoalError(f"{path}: no snapshot of a server, or a damaged one ({why}); remove it")
