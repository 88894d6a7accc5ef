"""Values of the repository format, without I/O; `icefloe.format` has the codecs."""
