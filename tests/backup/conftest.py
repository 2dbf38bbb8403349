from tests.storage_copy.fixtures import new_storage

__all__ = ["new_storage"]
