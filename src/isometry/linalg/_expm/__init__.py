"""The exponential of skew matrices, all of it: schemes, angles, plan, autograd."""
