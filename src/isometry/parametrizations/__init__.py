"""Constrained weights: parametrizations for torch.nn.utils.parametrize.

Users import from `isometry` itself, which exports the public names of this package.
"""
