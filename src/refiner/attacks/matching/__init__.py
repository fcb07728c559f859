"""Attacks that optimise images until their gradient is the upload."""
