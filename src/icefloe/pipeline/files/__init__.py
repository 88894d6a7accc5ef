"""Building blocks of file jobs: listing, parsing, checking and staging source files."""
