"""The command line. Modules here import nothing heavy at the top: `qdq --help` must answer at once."""
