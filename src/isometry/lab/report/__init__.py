"""Reports: one page of HTML from the folders of runs, with figures and tables."""

from isometry.lab.report._write import write

__all__ = ["write"]
