"""Turns folders of runs into a report: one HTML page with figures and tables."""
