"""Reports: one page of HTML from the folders of runs, with figures and tables."""
