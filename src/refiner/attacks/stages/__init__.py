"""Stages before or after another attack: `ATTACK+denoiser`, `ATTACK+adaptive`."""
