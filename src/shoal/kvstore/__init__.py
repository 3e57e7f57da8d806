"""Parameter servers: KVStore with the words and meaning of MXNet, its servers, and the client that strategies use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import torch

Key = int | str
TYPES = ("local", "device", "dist_sync", "dist_device_sync", "dist_async")


def create(type: str = "local", **options: Any) -> KVStore:
    """A store of that type. `dist_*` find their servers, rank and secret in the environment (docs/kvstore.md); options
    of `kvstore.dist.Dist` say them instead. Every worker must create it, in the same order as its other stores."""
    lowered = type.lower()
    if lowered not in TYPES:
        raise UsageError(f"no key-value store of type '{type}'{did_you_mean(lowered, TYPES)}")
    if lowered.startswith("dist"):
        from shoal.kvstore.dist import Dist

        return Dist(lowered, **options)
    from shoal.kvstore.local import Local

    return Local(lowered, **options)


class KVStore(ABC):
    """Named tensors that several devices or workers push to and pull from, with MXNet's words and meaning.

    Without an optimizer a push replaces the value by the sum over all devices and workers; with one, the sum is the
    gradient of a step. Keys are all int or all str. Where a key is asked for, a list of keys will do, with as many
    values; a value is a tensor or a list of them, one per device. `row_sparse` is not there.
    """

    type: str
    rank: int = 0
    num_workers: int = 1

    def __init__(self, type: str) -> None:
        self.type = type
        self._keys: dict[Key, torch.Tensor] = {}
        """Key -> a tensor of its shape and type."""

    # The verbs ------------------------------------------------------------------------------------------------------

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Makes a key known. dist: worker 0's value wins; a barrier, so all workers init the same keys in one order."""
        for one, values in self._pairs(key, value, known=False):
            if one in self._keys:
                raise UsageError(f"key {one!r} has been initialised before")
            kinds = {_kind(other) for other in (*self._keys, one)}
            if len(kinds) > 1:
                raise UsageError(f"key {one!r}: keys are all int or all str, not both")
            self._init(one, values[0].detach())
            self._keys[one] = values[0].detach()

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Adds up the devices' values and sends the sum. dist_sync: what is stored changes when all workers have
        pushed; this does not wait for them. priority is accepted and not needed: pushes leave in order."""
        for one, values in self._pairs(key, value):
            self._push(one, values)

    def pull(self, key: Key | Sequence[Key], out: Any = None, priority: int = 0) -> Any:
        """The stored value, after this worker's own pushes of the key took effect; into `out`, else returned."""
        if out is None:
            keys = list(key) if isinstance(key, (list, tuple)) else [key]
            found = [self._pull(self._known(one)).clone() for one in keys]  # type: ignore[arg-type]
            return found if isinstance(key, (list, tuple)) else found[0]
        for one, outs in self._pairs(key, out):
            value = self._pull(one)
            for tensor in outs:
                tensor.detach().copy_(value)
        return out

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> None:
        """push, then pull into `out`, or over `value`."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(self, key: Key | Sequence[Key], value: Any, out: Any, priority: int = 0) -> None:
        """init, then pull: worker 0's value for everybody. Once for each key."""
        self.init(key, value)
        self.pull(key, out, priority)

    @abstractmethod
    def set_optimizer(self, optimizer: str | type, *, rescale_grad: float = 1.0, **options: Any) -> None:
        """From now on a push is a gradient. optimizer: a name (sgd, adamw, timm's lamb …) or a class that was
        registered (`kvstore.updater.register`), with its own options; never an object that would have to be pickled.
        Momentum and the like begin anew. rescale_grad: what sums are multiplied with, for instance 1 / batch."""

    @abstractmethod
    def set_learning_rate(self, lr: float) -> None:
        """For the pushes to come; the optimizer keeps its state. dist: worker 0's call counts."""

    def set_updater(self, updater: Callable[[Key, torch.Tensor, torch.Tensor], None]) -> None:
        """updater(key, summed push, stored), which changes `stored` in place. local and device only."""
        raise UsageError(f"{self.type}: an updater is this program's code, which servers do not run; use set_optimizer")

    @abstractmethod
    def set_gradient_compression(self, compression: dict[str, Any]) -> None:
        """Of pushes to servers: {"type": "none" | "fp16" | "2bit", "threshold": 0.5}; float32 only, before init."""

    @abstractmethod
    def save_optimizer_states(self, path: str | Path) -> None:
        """Momentum and the like of all keys, as safetensors. dist: the servers'; one worker calls it."""

    @abstractmethod
    def load_optimizer_states(self, path: str | Path) -> None:
        """What `save_optimizer_states` wrote, after set_optimizer with the same name. dist: one worker calls it."""

    def barrier(self) -> None:
        """Waits until every worker is here."""
        return None

    def num_dead_node(self) -> int:
        """Workers that were there and went away without a goodbye."""
        return 0

    def close(self) -> None:
        """Goodbye; servers end with the last worker. At the end of the process it happens by itself."""
        return None

    # What the types differ in ---------------------------------------------------------------------------------------

    @abstractmethod
    def _init(self, key: Key, value: torch.Tensor) -> None: ...

    @abstractmethod
    def _push(self, key: Key, values: list[torch.Tensor]) -> None: ...

    @abstractmethod
    def _pull(self, key: Key) -> torch.Tensor: ...

    def _known(self, key: Key) -> Key:
        if key not in self._keys:
            raise UsageError(f"key {key!r} was not initialised{did_you_mean(str(key), map(str, self._keys))}")
        return key

    def _pairs(self, key: Any, value: Any, *, known: bool = True) -> list[tuple[Key, list[torch.Tensor]]]:
        """(key, one tensor per device) for each key, checked."""
        if not isinstance(key, (list, tuple)):
            key, value = [key], [value]
        if len(key) != len(value):
            raise UsageError(f"{len(key)} keys, but {len(value)} values")
        pairs = []
        for one, values in zip(key, value, strict=True):
            held = list(values) if isinstance(values, (list, tuple)) else [values]
            if not held:
                raise UsageError(f"key {one!r}: no value")
            like = self._keys[self._known(one)] if known else held[0]
            for tensor in held:
                if tensor.shape != like.shape:
                    raise UsageError(f"key {one!r}: shape {list(tensor.shape)}, but it is {list(like.shape)}")
            pairs.append((one, held))
        return pairs


def _kind(key: Key) -> str:
    if isinstance(key, bool) or not isinstance(key, (int, str)):
        raise UsageError(f"key {key!r}: keys are int or str")
    return type(key).__name__
