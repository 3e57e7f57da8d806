"""Sharing: how many of the host's threads a forward pass gets beside those that decode."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")
_READY = 0.05
"""Of the time that an item is used: who waits for the next no longer than that does not wait."""


def sharing(items: Iterable[T]) -> Iterator[T]:
    """The same items. While they are waited for, torch has one thread: its others would only stand in the way of those
    who make the items. Where they are ready in time, and for the first, which all wait for, it has as many as before.
    """
    all_of_them = torch.get_num_threads()
    coming, used_s = iter(items), 0.0
    try:
        while True:
            began = time.perf_counter()
            try:
                item = next(coming)
            except StopIteration:
                return
            come = time.perf_counter()
            torch.set_num_threads(1 if used_s and come - began > _READY * used_s else all_of_them)
            yield item
            used_s = time.perf_counter() - come
    finally:
        torch.set_num_threads(all_of_them)
