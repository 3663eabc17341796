"""Finds, fetches and verifies the data of tasks, and reads recordings of speech."""
