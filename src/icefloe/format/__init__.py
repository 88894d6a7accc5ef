"""Codecs: bytes of files to model values and back, no I/O.

A codec is named after the model module that it encodes: `format.snapshot` encodes `model.snapshot`.
"""
