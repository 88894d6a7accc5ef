"""Object stores and web servers, through obstore, which no other package imports.

`storage` implements the storage interface, `clients` makes obstore's clients for a `Place`, and
`errors` translates obstore's errors.
"""

from icefloe.storage.object_store.confined import ContainerHttpStorage
from icefloe.storage.object_store.storage import HttpStorage, ObjectStorage

__all__ = ["ContainerHttpStorage", "HttpStorage", "ObjectStorage"]
