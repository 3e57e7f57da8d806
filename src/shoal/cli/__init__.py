"""The command line: one file per verb, found by listing this folder and imported when its verb is used."""

from __future__ import annotations

import os
import sys
import time

import click

from shoal import __version__

BEGAN = time.time()
"""Unix time at which this process began to run Shoal."""

VERBS = {
    "train": "Train a recipe on this machine or on many.",
    "eval": "Validate a checkpoint: the same figures as in training.",
    "predict": "Say what is on images: names and probabilities.",
    "export": "Write a model for other programs: ONNX, torch.export, safetensors.",
    "data": "Show what images lie at a path; pack or mend them.",
    "list": "List recipes, models, the parts of a seam, or runs.",
    "show": "Print a recipe, resolved; what a run came to; or the schema for editors.",
    "report": "Make a page about a run, or about several side by side.",
    "tune": "Look for a good learning rate before a training.",
    "forecast": "How fast a recipe would train on many workers, and what would bind.",
    "import": "Make a recipe of an old command line or YAML; take over weights.",
    "launch": "Start any command on this machine or on many.",
    "ps": "List the processes of jobs, here and on other hosts.",
    "scale": "Compare strategies and numbers of workers: a table, pictures, a verdict.",
    "why": "Say where a run's time went and what held it back.",
    "stop": "Stop a job here and on other hosts.",
    "doctor": "Look whether hosts can run a job, and say what mends them.",
    "agent": None,
    "worker": None,
    "server": None,
}
"""Verb -> one line of help; None hides it. Said here, so that `shoal --help` imports no verb."""


_FOR_OTHERS = ("launch", "agent")
"""Verbs that start others' programs, which find the environment as it is."""


class Verbs(click.Group):
    """Imports a verb's file only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb, text in VERBS.items() if text]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if cmd_name not in _FOR_OTHERS:
            # torch's threads wait asleep: those that spin take the cores from whoever would end their waiting.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import importlib

        return importlib.import_module(f"shoal.cli.{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, text in VERBS.items() if text])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from shoal.base.errors import did_you_mean

            ctx.fail(f"no command '{args[0]}'{did_you_mean(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="shoal %(version)s")
def shoal() -> None:
    """Train image classifiers on one machine or on many. The recipe decides the trajectory, the cluster how fast.

    \b
    shoal train digits -n 2          two workers, the built-in digits
    shoal list recipes               what comes with Shoal
    shoal train my.yaml optim.lr=0.1 your own recipe, one key changed
    """


def main() -> None:
    """The `shoal` command: errors that a person can act on end in one line, everything else in a traceback."""
    from shoal.base.errors import INTERRUPTED, ShoalError

    try:
        code = shoal(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.exceptions.NoArgsIsHelpError as help_:
        print(help_.ctx.get_help())
        sys.exit(0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ShoalError as error:
        print(f"shoal: {error}" if "\n" not in str(error) else error, file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `shoal list … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
