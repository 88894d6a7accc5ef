"""Virtual chunks: containers, authorization, resolving locations and fetching.

Also converts and lists virtual references, and counts the external files of a repository.
"""
