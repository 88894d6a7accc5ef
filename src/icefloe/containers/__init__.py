"""Virtual chunk containers: which locations may be read, with which credentials, and their bytes.

Also the input and the listing of virtual references, and what a repository depends on.
"""
