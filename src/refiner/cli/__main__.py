"""`python -m refiner.cli`."""

from refiner.cli import app

app()
