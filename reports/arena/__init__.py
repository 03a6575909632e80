"""The arena in words, tables and pictures: methods as rows, compared at equal rounds, local steps and bytes."""
