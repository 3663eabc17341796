"""Data of the tasks: found, fetched, verified and parsed."""

from isometry.lab.data._get import get

__all__ = ["get"]
