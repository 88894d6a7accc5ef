"""What jobs on arrays share: metadata, work splitting, value conversion."""
