"""``declax rename``: another name for a field, wherever a project uses it.

mypy tells what each attribute and each call belongs to (`project`), with the plugin, as the checker of the project
does. `declaration` finds the field and refuses names that are taken; `code` collects the uses in Python, `tables` and
`files` those in configurations. Each use is an `Edit` of a text, so that everything else stays as it is written. What
cannot be decided is listed. This package needs mypy: only the command imports it.
"""
