"""`python -m shoal` is `shoal`; launchers use it, so that workers run under the interpreter that started them."""

from shoal.cli import main

if __name__ == "__main__":
    main()
