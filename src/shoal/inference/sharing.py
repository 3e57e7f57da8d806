"""Sharing: how many of the host's threads a forward pass gets beside those that decode."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def sharing(items: Iterable[T]) -> Iterator[T]:
    """The same items. While they are longer awaited than used, torch has one thread: its others would only stand in the
    way of those who make the items, busily waiting for work. Else it has as many as before.
    """
    all_of_them = torch.get_num_threads()
    coming = iter(items)
    try:
        while True:
            began = time.perf_counter()
            try:
                item = next(coming)
            except StopIteration:
                return
            come = time.perf_counter()
            yield item
            used_s, awaited_s = time.perf_counter() - come, come - began
            torch.set_num_threads(1 if awaited_s > used_s else all_of_them)
    finally:
        torch.set_num_threads(all_of_them)
