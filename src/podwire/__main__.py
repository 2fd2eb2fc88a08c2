"""`python -m podwire`: the same as the command `podwire`."""

from podwire.cli.main import main

main()
