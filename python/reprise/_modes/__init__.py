"""A step in the first mode that works: follow, chain or online. Graph mode is there by name."""
