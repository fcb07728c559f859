"""`python -m refiner`: the command line."""

from refiner.cli import app

app(prog_name="refiner")
