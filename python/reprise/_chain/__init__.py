"""Chain mode: stages that are measured, planned and run; branches that meet; curves."""
