"""Check records, and send them to others."""
