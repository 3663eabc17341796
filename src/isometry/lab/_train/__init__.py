"""Training: `start` and `resume` make a run, which is a folder."""
