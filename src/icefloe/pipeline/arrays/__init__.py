"""Building blocks of array jobs: metadata, work splitting, copying and value conversion."""
