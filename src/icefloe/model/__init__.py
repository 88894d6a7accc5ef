"""The persisted types as frozen values, no I/O; `icefloe.format` has the codec of the same name."""
