"""The paper, reproduced: records of runs, and the page that is made from them.

python -m tools.reproduction record RUNS   # thin finished runs into records/runs
python -m tools.reproduction carry RUNS    # copy unfinished runs to records/unfinished
python -m tools.reproduction measure NAME  # make a small experiment, and record it
python -m tools.reproduction page          # write the pages from records, and figures
"""
