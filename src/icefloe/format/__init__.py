"""Codecs between the bytes of files and the values of `icefloe.model`, without I/O.

A codec has the name of the module that it encodes: `format.snapshot` encodes `model.snapshot`.
"""
