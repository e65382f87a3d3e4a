"""`qdq bench`: how fast every part is, as a share of what this processor does on the same matrix products."""
