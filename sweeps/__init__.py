"""Select experiments to run: plan which runs are missing, launch them, and report their progress."""
