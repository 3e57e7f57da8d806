from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from shoal.base.errors import UsageError, did_you_mean
from shoal.step.optim import Optim

if TYPE_CHECKING:
    import torch


class Timm(Optim, frozen=True, kw_only=True):
    """Any optimizer that timm names: lamb, lion, madgrad, nadamw …"""

    name: Literal["timm"] = "timm"
    opt: str
    """timm's name of the optimizer."""
    options: dict[str, Any] = {}  # noqa: RUF012  (a Struct copies it for each)
    """Further arguments of that optimizer, by its own names."""

    def make(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        from timm.optim import create_optimizer_v2, list_optimizers  # type: ignore[attr-defined]

        known = [str(name) for name in list_optimizers()]
        if self.opt not in known:
            raise UsageError(f"optim.opt: no timm optimizer called '{self.opt}'{did_you_mean(self.opt, known)}")
        try:
            return create_optimizer_v2(
                self.groups(model), opt=self.opt, lr=self.lr, weight_decay=self.weight_decay, **self.options
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"optim.options: {self.opt} does not take them ({error})") from None
        except (AssertionError, ImportError) as error:  # those of apex and bitsandbytes
            raise UsageError(f"optim.opt: {self.opt} cannot be used here ({error})") from None
