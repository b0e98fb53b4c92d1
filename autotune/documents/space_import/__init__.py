"""Files in which other tools say what to vary, as search spaces."""

from autotune.documents.space_import.imported import Form, Imported, import_space

__all__ = ["Form", "Imported", "import_space"]
