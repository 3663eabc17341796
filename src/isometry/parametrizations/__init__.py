"""Constrained weights: parametrizations for torch.nn.utils.parametrize.

The front door is `isometry` itself, which exports what is public here.
"""
