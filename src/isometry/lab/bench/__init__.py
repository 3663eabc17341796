"""Side-by-side measurements on the user's machine: `isometry bench`.

The repository's `benchmarks/` times the same contenders, and writes the record.
"""
