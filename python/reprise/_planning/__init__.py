"""Problems, plans and results, without PyTorch: what is read, planned, checked and shown."""
