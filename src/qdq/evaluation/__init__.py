"""Scores: environments, roll-outs and statistics."""
