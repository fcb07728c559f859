"""Attacks that learn from simulated uploads of public images."""
