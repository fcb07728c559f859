"""Attacks that solve for the inputs of a layer which reveals them."""
