"""The only modules that use private or undocumented names of other libraries, or replace parts of them.

A module belongs to one library, or to one part of a large one, and is named `<library>_private` because the bare name
would hide the library. `patching` is shared by all of them. Each private name is wrapped in a function or a constant
with a docstring that says why it is needed, and callers use only the wrapper.

A release of the library may rename or change what is wrapped. `tests/compat` has a test for each wrapper, which
uses it on something small and fails with its name; `make check-latest` runs these tests against the newest releases.
`pyproject.toml` has upper bounds for the versions that were tested.
"""
