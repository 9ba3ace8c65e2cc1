"""What every way of training shares: parts of a model, nested arguments, meters, reports."""
