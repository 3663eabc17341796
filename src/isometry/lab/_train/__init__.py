"""Training: `start` and `resume` make a run, which is kept in a folder."""
