"""Problems, plans and their results, without PyTorch: what is read from files, planned, checked and shown."""
