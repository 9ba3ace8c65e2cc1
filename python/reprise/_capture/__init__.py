"""Graph mode: captured steps, what they watch, their optimizer and their parts along the batch."""
