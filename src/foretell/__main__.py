"""`python -m foretell` is the program `foretell`."""

from foretell.cli import main

main()
