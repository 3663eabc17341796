"""Reports: turn folders of runs into one HTML page with figures and tables."""
