"""Tasks, training, records and reports: `pip install isometry[lab]`.

Nothing here imports torch before it is needed: the command line starts at once.
"""
