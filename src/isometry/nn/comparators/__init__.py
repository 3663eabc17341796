"""Recurrent networks of other authors, to compare with `ExpRNN`."""
