"""Pace: an optimizer that gets each batch's gradient in several pushes, and moves the weights as far as by one step."""

from __future__ import annotations

from typing import Any

_PROPORTIONAL = ("sgd", "asgd", "timm.sgdw")
"""Optimizers whose step is as large as the gradient; all others' is as large as the rate."""


class Pace:
    """Asynchronous pushes are one shard's part of the global batch's gradient each.

    SGD: weights decay by as much less in each push, and momentum lasts as many batches as ever, so more pushes. As
    large a part of each gradient as Nesterov's momentum would take goes into the weights at once: what comes later, by
    way of the momentum, comes on top of others' pushes that know nothing of it. This is quasi-hyperbolic momentum (Ma,
    Yarats 2019) with nu = m and beta = m^(1/pushes): Nesterov's, where a batch is one push. That momentum bears stale
    gradients if one looks ahead along it is from Hakimi, Barkai, Gabel, Schuster 2019, Taming momentum in a distributed
    asynchronous environment.
    """

    def __init__(self, described: dict[str, Any], pushes: int) -> None:
        """described: as `updater.describe` does; pushes: of a batch. One leaves the optimizer as it is."""
        self.rate = 1.0 if described["name"] in _PROPORTIONAL else 1 / pushes
        """What to multiply the rate with."""
        self._step = described["groups"]
        self._push = [_paced(group, pushes) if self.rate == 1.0 else group for group in self._step]
        self.described = described | {"groups": self._push}
        """The optimizer as the servers have it."""

    def to_push(self, state: dict[str, Any]) -> dict[str, Any]:
        """The servers' form of the state_dict that an optimizer has which steps once a batch."""
        return _converted(state, self._step, self._push)

    def to_step(self, state: dict[str, Any]) -> dict[str, Any]:
        """The other way round."""
        return _converted(state, self._push, self._step)


def _converted(state: dict[str, Any], old: list[dict[str, Any]], new: list[dict[str, Any]]) -> dict[str, Any]:
    """Options in which the two forms differ are the new form's; buffers have as much left to move."""
    groups, factors = [], dict[int, float]()
    for group, before, after in zip(state["param_groups"], old, new, strict=True):
        groups.append(group | {key: after[key] for key in after if after[key] != before.get(key)})
        factors.update(dict.fromkeys(group["params"], _left(before) / _left(after)))
    held = {
        position: {
            key: value * factors[int(position)] if key == "momentum_buffer" else value for key, value in of.items()
        }
        for position, of in state["state"].items()
    }
    return state | {"state": held, "param_groups": groups}


def _left(group: dict[str, Any]) -> float:
    """How far a momentum buffer of 1 moves the weights where no gradient comes any more."""
    momentum = group.get("momentum") or 0.0
    return momentum ** (2 if group.get("nesterov") else 1) / (1 - momentum) if momentum else 1.0


def _paced(group: dict[str, Any], pushes: int) -> dict[str, Any]:
    if "weight_decay" in group:
        group = group | {"weight_decay": group["weight_decay"] / pushes}
    momentum = group.get("momentum", 0.0)
    if not momentum or pushes == 1 or group.get("dampening", 0.0):
        return group
    lasting = momentum ** (1 / pushes)
    # torch's SGD adds the gradient and lasting x buffer, whose sum over time is (1 - dampening) / (1 - lasting).
    dampening = 1 - momentum / (1 - momentum) * (1 - lasting) / lasting
    return group | {"momentum": lasting, "nesterov": True, "dampening": dampening}
