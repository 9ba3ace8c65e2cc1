"""A step in the best mode that works: graph, guarded graph, online, chain, or layer by layer."""
