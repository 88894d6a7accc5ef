"""Codecs of the generation ``sequence`` (``docs/format/sequence.md``)."""
