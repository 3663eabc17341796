"""Recurrent networks with orthogonal and unitary weights."""

from isometry.nn._cell import ExpRNNCell
from isometry.nn._exp_rnn import ExpRNN
from isometry.nn._modrelu import ModReLU

__all__ = ["ExpRNN", "ExpRNNCell", "ModReLU"]
