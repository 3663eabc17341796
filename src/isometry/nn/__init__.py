"""Recurrent networks with orthogonal and unitary weights."""

from isometry.nn._exp_gated import ExpGRU, ExpLSTM
from isometry.nn._exp_rnn import ExpRNN, ExpRNNCell, ModReLU
from isometry.nn.comparators.eurnn import EURNN
from isometry.nn.comparators.factors import HouseholderRNN, SpectralRNN
from isometry.nn.comparators.skew import LieRNN, ScoRNN, ScuRNN
from isometry.nn.comparators.urnn import URNN, FullCapacityURNN

__all__ = [
    "ExpRNN",
    "ExpRNNCell",
    "ModReLU",
    "ExpLSTM",
    "ExpGRU",
    "ScoRNN",
    "ScuRNN",
    "URNN",
    "EURNN",
    "FullCapacityURNN",
    "HouseholderRNN",
    "SpectralRNN",
    "LieRNN",
]
