"""What jobs on files share: listing, parsing, checking and staging them."""
