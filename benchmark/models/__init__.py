"""Define the networks, one per file, to which the normalisation is passed."""
