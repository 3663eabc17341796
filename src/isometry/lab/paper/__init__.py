"""The paper [LM19] as data: its networks, how they are trained, its runs and tables."""
