"""Will it fit? Steps on fake tensors, their problems, and the answer for a list of memories."""
