"""Check run records, and share them with others."""
