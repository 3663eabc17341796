"""The exponential of skew matrices: schemes, angles, plans and autograd."""
