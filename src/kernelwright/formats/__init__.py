"""The forms in which people pose problems and hand in candidates, and a file with Model of each.

In: a path. Out: a Posed, the texts of a problem by name and form; from it the text of a file with
`Model` for each case it asks for, of one with `ModelNew` for what was handed in, and the other way
round a submission in the same form. The one idea: nothing of a problem is run to read it, so that
whoever looks through a folder runs nobody's code.
"""

from kernelwright.formats.posed import Case, Files, Format, Posed, answer_files
from kernelwright.formats.table import FORMATS, form_named, found, read

__all__ = [
    "FORMATS",
    "Case",
    "Files",
    "Format",
    "Posed",
    "answer_files",
    "form_named",
    "found",
    "read",
]
