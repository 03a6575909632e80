"""Define the networks, one per file. Each gets the normalisation as an argument."""
