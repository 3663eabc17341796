"""Finds, fetches and verifies the data of the tasks, and reads recordings."""
