"""`shoal agent` (inside): what a launcher starts on each host; it speaks with the launcher on stdin and stdout."""

from __future__ import annotations

import click


@click.command("agent", hidden=True)
@click.option("--come", is_flag=True, help="Connect to the launcher that SHOAL_HEAD names instead.")
def command(come: bool) -> int:
    """Supervises the processes of a job on this host."""
    if come:
        import os

        from shoal.launch import come as coming

        return coming.come(os.environ)
    from shoal.launch.agent import main

    return main()
