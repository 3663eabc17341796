"""The paper's figures and tables, re-run: what is missing is trained, then reported."""

from isometry.lab.reproduce._plan import PlannedRun, plan

__all__ = ["PlannedRun", "plan"]
