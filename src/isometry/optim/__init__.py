"""Optimizers that step along a manifold, for weights that must stay on it."""

from isometry.optim._adam import RiemannianAdam
from isometry.optim._rmsprop import RiemannianRMSprop
from isometry.optim._sgd import RiemannianSGD

__all__ = ["RiemannianSGD", "RiemannianAdam", "RiemannianRMSprop"]
