"""Object stores and web servers through the Rust library obstore, which no other package imports.

`storage` turns calls into requests, `clients` a `Place` into obstore's clients, and `errors`
obstore's errors into those of icefloe.
"""

from icefloe.storage.object_store.storage import HttpStorage, ObjectStorage

__all__ = ["HttpStorage", "ObjectStorage"]
