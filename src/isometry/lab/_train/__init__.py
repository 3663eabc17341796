"""Training: `train` and `resume` train a network, and keep the run in a folder."""
