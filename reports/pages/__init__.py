"""What each page of the site shows, as plain values for its template."""
