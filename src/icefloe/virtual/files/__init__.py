"""Files of arrays as columns of virtual chunk references: parsed, checked, combined.

`parsing` is the way in. `sniffing` says what a file is, `sources` opens it, a module per format
turns it into a `dataset.VirtualDataset`, `combining` joins many of those along dimensions after
`agreement` has found that they fit. None of it needs a repository, and all results pickle: what a
task of a cluster returns is what its driver combines. `icefloe.virtual_writer` brings them into a
session.

The modules of formats need the ``virtual`` extra; nothing here is imported before it is used.
"""
