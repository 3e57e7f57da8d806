"""Pace: an optimizer that gets each batch's gradient in several pushes, and moves the weights as far as by one step."""

from __future__ import annotations

from typing import Any

_PROPORTIONAL = ("sgd", "asgd", "timm.sgdw", "timm.sgdp")
"""Optimizers whose step is as large as the gradient; others' is as large as the rate (OrthogonalSgd: by group)."""
_LOOKS_AHEAD = ("sgd", "timm.sgdw")
"""Those whose momentum can be stretched over more pushes."""

Group = dict[str, Any]


class Pace:
    """Asynchronous pushes are one shard's part of the global batch's gradient each.

    Where a step is as large as the gradient, weights decay by as much less in each push; elsewhere each push moves them
    by as much less. SGD's momentum m lasts as many batches as ever, so more pushes. Of the 1 / (1 - m) that it makes of
    a gradient as much is applied at once as by a whole step, 1 + m (not Nesterov's: 1); the rest acts later, on weights
    that others have moved meanwhile. This is quasi-hyperbolic momentum (Ma, Yarats 2019) with beta = m^(1/pushes), nu =
    m^2 / beta (m / beta) and the rate lr / (1 - m). That momentum bears stale gradients if it looks ahead is from
    Hakimi, Barkai, Gabel, Schuster 2019, Taming momentum in a distributed asynchronous environment.

    In a step, a batch's gradients are half a batch stale on average. Where more workers than half the pushes are under
    way, momentum lasts as much longer as theirs are staler. On a quadratic, with m = 0.9 and up to 8 workers, weights
    then answer to the noise of a gradient less than in a step of Nesterov's where lr x curvature is at most 0.2, and by
    up to 0.4 more at 0.4; a step bears 1.35, such pushes 0.75.
    """

    def __init__(self, described: dict[str, Any], pushes: int, workers: int) -> None:
        """described: as `updater.describe` does; pushes: of a batch, of which each worker has one under way. A batch
        of one push leaves the optimizer as it is."""
        lasting = max(pushes, 2 * workers)
        self._per_step: list[Group] = described["groups"]
        self._per_push = [_per_push(described["name"], group, pushes, lasting) for group in self._per_step]
        self.described = described | {"groups": self._per_push}
        """The optimizer as the servers have it."""

    def to_push(self, state: dict[str, Any]) -> dict[str, Any]:
        """The servers' form of the state_dict that an optimizer has which steps once a batch."""
        return _converted(state, self._per_step, self._per_push)

    def to_step(self, state: dict[str, Any]) -> dict[str, Any]:
        """The other way round."""
        return _converted(state, self._per_push, self._per_step)


def _per_push(name: str, group: Group, pushes: int, lasting: int) -> Group:
    """lasting: pushes over which momentum decays by its factor."""
    if pushes == 1:
        return group
    if name not in _PROPORTIONAL and group.get("orthogonal") is not False:
        return group | {"lr_scale": group.get("lr_scale", 1.0) / pushes}
    if group.get("weight_decay"):
        group = group | {"weight_decay": group["weight_decay"] / pushes}
    m = group.get("momentum", 0.0)
    if name not in _LOOKS_AHEAD or not m or group.get("dampening", 0.0):
        return group
    # torch applies scale * (1 + beta * (1 - dampening)) of a gradient at once, scale * (1 + beta * (1 - dampening) /
    # (1 - beta)) in all, and the rate brings the scale.
    beta, at_once, in_all = m ** (1 / lasting), 1 + m if group.get("nesterov") else 1.0, 1 / (1 - m)
    scale = (at_once - (1 - beta) * in_all) / beta
    dampening = 1 - (in_all / scale - 1) * (1 - beta) / beta
    if name == "timm.sgdw":
        power = 2 if group.get("corrected_weight_decay") else 1  # of the rate that it decays by
        group = group | {"weight_decay": group.get("weight_decay", 0.0) / scale**power}
    scale *= group.get("lr_scale", 1.0)
    return group | {"momentum": beta, "nesterov": True, "dampening": dampening, "lr_scale": scale}


def _converted(state: dict[str, Any], old: list[Group], new: list[Group]) -> dict[str, Any]:
    """Options in which the two forms differ are the new form's; buffers have as much left to move."""
    groups, held = [], dict(state["state"])
    for group, before, after in zip(state["param_groups"], old, new, strict=True):
        added = {key for key in before if key not in after}
        other = {key: value for key, value in after.items() if value != before.get(key)}
        groups.append({key: value for key, value in group.items() if key not in added} | other)
        if "momentum" not in other:
            continue
        factor = _still_to_move(before) / _still_to_move(after)
        for position in group["params"]:
            key = position if position in held else str(position)
            if (buffer := held.get(key, {}).get("momentum_buffer")) is not None:
                held[key] = held[key] | {"momentum_buffer": buffer * factor}
    return state | {"state": held, "param_groups": groups}


def _still_to_move(group: Group) -> float:
    """How far a momentum buffer of 1 moves the weights when no gradient comes any more."""
    left = group["momentum"] ** (2 if group["nesterov"] else 1) / (1 - group["momentum"])
    return left * (group.get("lr_scale", 1.0) or 1.0)  # a group that rests keeps its momentum
