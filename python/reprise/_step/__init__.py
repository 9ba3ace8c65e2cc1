"""All ways of training share this room: parts of a model, nested arguments, meters, reports."""
