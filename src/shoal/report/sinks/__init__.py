"""Sinks: where the trainer's events go. An event is a dict of JSON values; docs/metrics.md lists them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from shoal.report.histogram import Histogram
    from shoal.report.predictions import Predictions

Event = dict[str, Any]


class Sink(ABC):
    """Takes events one by one, in the order of training; a context manager that closes itself."""

    @abstractmethod
    def write(self, event: Event) -> None:
        """Takes one event; events that this sink does not show are ignored."""

    def show_examples(self, step: int, predictions: Predictions) -> None:  # noqa: B027  (most sinks show no pictures)
        """Takes what the validation after `step` said of the images that have pictures; always the same images."""

    def show_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:  # noqa: B027
        """Takes histograms by tag, as they were after `step`."""

    @abstractmethod
    def close(self) -> None:
        """Makes everything written so far visible and lets go of files; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sinks(Sink):
    """Hands each event to every sink, in the order given."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, event: Event) -> None:
        for sink in self._sinks:
            sink.write(event)

    def show_examples(self, step: int, predictions: Predictions) -> None:
        for sink in self._sinks:
            sink.show_examples(step, predictions)

    def show_histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:
        for sink in self._sinks:
            sink.show_histograms(step, histograms)

    def close(self) -> None:
        with ExitStack() as stack:  # closes the others even when one fails
            for sink in reversed(self._sinks):
                stack.callback(sink.close)
