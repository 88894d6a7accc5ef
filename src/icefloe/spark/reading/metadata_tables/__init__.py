"""Metadata tables of repositories and snapshots; `registry` lists them."""
