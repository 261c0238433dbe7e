"""Shapes that hold for every size: annotations are read, and calls are evaluated with symbols in place of sizes.

`checking.check_shapes` asks `targets` for the calls of a class, Spec, model or function; `proving` evaluates each with
symbols and in numbers (`evaluation`), and `report` words what was found. Traps:

- Evaluation with symbols alone proves nothing: JAX does not check reshapes, answers False to undecided `==`, proves
  anything from contradictory conditions, and knows nothing of indices. `equations`, `comparisons` and `domains` do.
- Sizes have two forms: those of JAX (`Dimension`), and those of `_text.dimensions` in the user's names (`Size`).
- Annotated methods are wrapped for the time of one evaluation only, under a lock.
"""
