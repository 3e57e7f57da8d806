"""`shoal agent` (inside): what a launcher starts on each host; it speaks with the launcher on stdin and stdout."""

from __future__ import annotations

import click


@click.command("agent", hidden=True)
def command() -> int:
    """Supervises the processes of a job on this host."""
    from shoal.launch.agent import main

    return main()
