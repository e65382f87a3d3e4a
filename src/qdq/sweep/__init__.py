"""Studies: many runs from one file, on this machine or a cluster, that survive interruption and end in a report."""
