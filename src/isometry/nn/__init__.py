"""Recurrent networks with orthogonal and unitary weights."""

from isometry.nn._cell import ExpRNNCell
from isometry.nn._eurnn import EURNN
from isometry.nn._exp_gru import ExpGRU
from isometry.nn._exp_lstm import ExpLSTM
from isometry.nn._exp_rnn import ExpRNN
from isometry.nn._full_capacity import FullCapacityURNN
from isometry.nn._householder_rnn import HouseholderRNN
from isometry.nn._lie import LieRNN
from isometry.nn._modrelu import ModReLU
from isometry.nn._scornn import ScoRNN
from isometry.nn._scurnn import ScuRNN
from isometry.nn._spectral import SpectralRNN
from isometry.nn._urnn import URNN

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
