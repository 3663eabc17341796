"""The paper [LM19] as data: its networks, how they are trained, its runs and tables."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isometry.lab.paper.networks import NETWORKS, recipe_for

__all__ = ["NETWORKS", "recipe_for"]


def __getattr__(name: str) -> Any:
    # import lazily: the networks need torch, but the tables and the protocol do not
    if name in __all__:
        from isometry.lab.paper import networks

        return getattr(networks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
