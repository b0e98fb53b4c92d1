"""Files that people write: YAML with line numbers, and plain words for what is wrong in them.

Study files, search spaces and launch templates are all read by `read_value`; it reports every problem of a
file at once, each with its line, its dotted key and the values that would do.
"""

from autotune.documents.problems import nearest, problems_of
from autotune.documents.study_file import read_study
from autotune.documents.value_file import file_text, read_value
from autotune.documents.yaml_text import MAX_BYTES, MAX_DEPTH, Document, KeyPath, dotted, key_path, read_document

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Document",
    "KeyPath",
    "dotted",
    "file_text",
    "key_path",
    "nearest",
    "problems_of",
    "read_document",
    "read_study",
    "read_value",
]
