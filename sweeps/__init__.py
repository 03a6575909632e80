"""Which experiments to run: plan what is missing, launch it, watch it."""
