"""Data of the tasks: found, fetched, verified and parsed."""
