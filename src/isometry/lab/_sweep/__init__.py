"""Sweeps: the product of options, each point of it a run, all in one folder."""
