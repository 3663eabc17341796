"""Training: `train` begins a run in a new folder, and `resume` continues it."""
