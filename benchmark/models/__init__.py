"""Networks: one a file, with the normalisation passed in."""
