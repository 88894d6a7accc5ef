"""Object stores and web servers through the Rust library obstore, which nothing else knows.

`storage` turns the calls of the interface into requests, `clients` turns a `Place` into obstore's
clients, `errors` turns obstore's errors into ours.
"""

from icefloe.storage.object_store.storage import HttpStorage, ObjectStorage

__all__ = ["HttpStorage", "ObjectStorage"]
