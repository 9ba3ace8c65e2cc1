"""Diagnosis: what a training step does, and what somebody else's memory saving costs."""
