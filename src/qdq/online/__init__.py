"""Online training of behaviour policies: where the dataset factory's snapshots come from."""
