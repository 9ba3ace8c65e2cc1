"""The backend of torch.compile: joint graphs, their costs, and their division in two."""
