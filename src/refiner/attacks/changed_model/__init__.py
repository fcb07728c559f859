"""Attacks of a server that changes the model which clients receive."""
