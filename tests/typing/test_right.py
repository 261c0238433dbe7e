import runpy
from pathlib import Path

import jax.numpy as jnp
import optax
import pytest

import declax as dx

HERE = Path(__file__).parent


@pytest.mark.slow
def test_the_right_program_runs() -> None:
    names = runpy.run_path(str(HERE / "right.py"))
    names["specifiers_have_the_type_of_their_default"]()
    names["classes_have_expressions"]()
    assert names["Narrowed"](2, 3, rngs=dx.Rngs(0)).low.kernel.shape == (4, 2)
    assert names["Made"](2).last.kernel.shape == (2, 2)
    assert names["Computed"](2, rngs=dx.Rngs(0)).several == (3, 3)
    names["constructors_keep_their_types"]()
    block = names["Block"](2, 3, rngs=dx.Rngs(0))
    names["graphs_keep_their_types"](block)
    names["states_keep_their_types"](dx.state(block))
    names["containers_keep_their_types"](jnp.ones((1, 2)))
    names["training_keeps_its_types"](block, jnp.ones((1, 2)))
    assert names["variables_are_arrays"](block.scale, jnp.ones(2)).shape == (2,)


@pytest.mark.slow
def test_transforms_run_with_these_types() -> None:
    names = runpy.run_path(str(HERE / "right_transforms.py"))
    block, x = names["Block"](2, rngs=dx.Rngs(0)), jnp.ones((1, 2))
    names["gradients_of_others"](x[0])
    names["methods_know_their_instance"](names["Wide"](2, rngs=dx.Rngs(0)), x)
    for name in (
        "methods_keep_their_types",
        "trees_of_optax",
        "gradients_are_states",
        "gradients_in_gradients",
        "compiled_functions",
        "control_flow",
        "rules",
    ):
        names[name](block, x)


def test_random_streams_have_these_types() -> None:
    names = runpy.run_path(str(HERE / "right_rngs.py"))
    names["methods_keep_their_types"](names["Model"]())
    names["functions_keep_their_types"]()
    names["streams_draw_arrays"](dx.Rngs(0, dropout=1, params=2))


def test_ported_programs_run() -> None:
    names = runpy.run_path(str(HERE / "right_ported.py"))
    rngs = dx.Rngs(0)
    block, x = names["Block"](2, rngs=rngs), jnp.ones((1, 2))
    names["dicts_are_merged"](block)
    assert names["modules_are_called"](block, [block], x).shape == (1, 2)
    names["lists_start_empty"](rngs)
    names["states_have_their_module"](block)
    names["any_model"](*dx.split(block), dx.List(), dx.Optimizer(block, optax.sgd(0.1)))
    names["fields_are_replaced"](block, block, rngs)
