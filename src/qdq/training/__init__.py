"""One training loop for every stage and algorithm, and what happens between its chunks."""
