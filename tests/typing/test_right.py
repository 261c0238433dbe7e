import runpy
from pathlib import Path


def test_the_right_program_runs() -> None:
    names = runpy.run_path(str(Path(__file__).with_name("right.py")))
    names["constructors_keep_their_types"]()
    block = names["Block"](2, 3, rngs=names["dx"].Rngs(0))
    names["graphs_keep_their_types"](block)
    names["training_keeps_its_types"](block, names["jnp"].ones((1, 2)))
    assert names["variables_are_arrays"](block.scale, names["jnp"].ones(2)).shape == (2,)
