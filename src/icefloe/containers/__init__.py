"""Virtual chunk containers: authorization, resolving locations and fetching.

Also the input and listing of virtual references, and the external files a repository depends on.
"""
