"""`python -m shoal` is `shoal`; launchers use it, so that workers run under the interpreter that started them."""

import sys


def main() -> None:
    if sys.argv[1:] == ["agent"]:  # without the command line's imports: every start of a job waits for it
        from shoal.launch.agent import main as agent

        sys.exit(agent())
    from shoal.cli import main as shoal

    shoal()


if __name__ == "__main__":
    main()
