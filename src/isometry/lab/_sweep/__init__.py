"""Sweeps: a run for each combination of options, all in one folder."""
