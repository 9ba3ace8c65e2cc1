"""Will it fit? Training steps on fake tensors, their problems, and the answer for a list of memories."""
