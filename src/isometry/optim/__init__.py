"""Optimizers for weights that live on a manifold: gradient descent on the group."""

from isometry.optim._adam import RiemannianAdam
from isometry.optim._rmsprop import RiemannianRMSprop
from isometry.optim._sgd import RiemannianSGD

__all__ = ["RiemannianSGD", "RiemannianAdam", "RiemannianRMSprop"]
