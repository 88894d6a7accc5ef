"""Transactions: changes on top of a base snapshot; flush, rebase, merge and diff."""
