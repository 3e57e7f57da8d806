"""Launcher: where a job runs. It knows roles and hosts, never strategies."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Plan
from shoal.recipe.part import Part


class Launcher(Part, frozen=True, kw_only=True):
    """Plans first, then acts: `plan` can be printed and tested without starting anything."""

    SEAM: ClassVar[str] = "launchers"
    IS_HERE: ClassVar[bool] = False
    """Whether it starts nothing on any other host than those that the command line names."""

    SERVES: ClassVar[bool] = True
    """Whether what makes parameter servers trust their workers may travel to its hosts."""

    @abstractmethod
    def fits(self) -> str | None:
        """None when this launcher can be used here, else the reason (``no `sbatch` on PATH``)."""

    def hosts(self) -> tuple[Host, ...]:
        """Those that the engine has given to this process; empty: the command line says which."""
        return ()

    @property
    def submits(self) -> bool:
        """Whether `start` hands the job to an engine, in which this command is started once more."""
        return False

    @abstractmethod
    def plan(self, job: Job) -> Plan:
        """The exact processes. Pure: touches no file, host or port; those known only at the start are placeholders."""

    @abstractmethod
    def start(self, plan: Plan) -> Handle:
        """Fills the placeholders and starts the processes of `plan`."""
