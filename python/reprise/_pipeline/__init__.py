"""Pipelines: parts of a model that ranks of a process group train together."""
