"""A transaction: a base snapshot, what was changed on top of it, and how it becomes a commit."""
