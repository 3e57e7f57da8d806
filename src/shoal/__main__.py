"""`python -m shoal` is the same as `shoal`; launchers use it so that workers run under the very interpreter that started them."""

from shoal.cli import main

if __name__ == "__main__":
    main()
