"""Episodes: the one type for data, its readers and writers, and the dataset factory."""
