"""Saved state: what a run needs to go on, in one file or in a folder of several ranks."""
