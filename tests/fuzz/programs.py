"""Random programs: Python source, made from a seed, that runs under declax and under the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

HEADER = """
class Node(dx.Module):
    def __init__(self, k):
        self.w = dx.Param(jnp.array([0.5, 1.0]) * k)
        self.s = dx.BatchStat(jnp.array(0.25) * k)
        self.n = dx.Variable(jnp.array(k, jnp.int32))
        self.mode = k
        self.left = dx.data(None)
        self.right = dx.data(None)

class Bare(Node):  # with an array in an attribute
    def __init__(self, k):
        super().__init__(k)
        self.raw = jnp.array([1.0, 2.0]) + k

class Rich(Node):
    def __init__(self, k):
        super().__init__(k)
        self.items = dx.List([Node(k + 1)])
        self.table = dx.Dict({"b": Node(k + 2), "a": dx.Param(jnp.array(0.5))})
        self.parts = dx.data([self.items[0], dx.Param(jnp.array(0.75))])
        self.kinds = dx.data({"z": self.w, "y": dx.BatchStat(jnp.array(0.25))})

@dx.dataclass
class Declared(dx.Module):
    w: dx.Param
    mode: int = 1

class Trainer(dx.Module):
    def __init__(self, model):
        self.model = model
        self.optimizer = dx.Optimizer(model, sgd, wrt=dx.Param)
        self.steps = dx.Variable(jnp.array(0, jnp.int32))

    @dx.jit
    def step(self, x):
        loss, grads = dx.value_and_grad(lambda model: jnp.sin(total(model) * 0.1 + x))(self.model)
        self.optimizer.update(self.model, grads)
        self.steps.value = self.steps.value + 1
        return loss
"""
MODES = ("0", "1", "1", "True", "True", "1.0", "-0.0", "0.0", "'text'", "(1, 2)", "(1, True)", "None")
EQUAL = (("1", "True"), ("1.0", "1"), ("-0.0", "0.0"), ("(1, 2)", "(True, 2)"))
"""Static values that are equal, and not the same."""


@dataclass
class Block:
    """A statement with a body."""

    head: str
    body: list[Any] = field(default_factory=list)


Statement = Any  # str | Block


def text_of(statements: list[Statement], indent: str = "") -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, Block):
            yield indent + statement.head
            yield from text_of(statement.body or ["pass"], indent + "    ")
        else:
            yield indent + statement


def source_of(program: list[Statement]) -> str:
    return HEADER + "\n" + "\n".join(text_of(program)) + "\n"


@dataclass
class Scope:
    """What a body may use: models by name, and what it may do with them.

    Attributes:
      models: the names of models.
      level: "read"; "write", Variables and arrays; or "change", the structure too.
      depth: of functions.
      is_derived: whether it is differentiated.
      is_mapped: whether it is the body of a `vmap`, or in one.
      may_count: whether it may call `bound`, which counts its calls: a branch that each row chooses may not, since the
        count would differ between rows for all that JAX knows.
    """

    models: list[str]
    level: str
    depth: int = 0
    is_derived: bool = False
    is_mapped: bool = False
    may_count: bool = True


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.captured = False
        self.arrays = True

    # ------------------------------------------------------------- small parts

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def pick(self, options: Any) -> Any:
        return self.random.choice(list(options))

    def number(self) -> int:
        return self.random.randrange(6)

    def model(self, scope: Scope) -> str:
        return self.pick(scope.models)

    def node(self, scope: Scope) -> str:
        model = self.model(scope)
        return model if self.random.random() < 0.3 else f"node({model}, {self.number()})"

    # ------------------------------------------------------------- bodies

    def body(self, scope: Scope, size: int) -> list[Statement]:
        """Statements that add to `y`."""
        found: list[Statement] = []
        for _ in range(size):
            found += self.statement(scope)
        return found

    def statement(self, scope: Scope) -> list[Statement]:
        kinds: list[tuple[int, Callable[[Scope], list[Statement]]]] = [(3, self.reading)]
        if scope.level != "read":
            kinds.append((4, self.writing))
        if scope.level == "change":
            kinds.append((6, self.changing))
        if scope.depth < 2:
            kinds.append((4 if scope.depth == 0 else 2, self.nested))
        weights, makers = zip(*kinds, strict=True)
        return self.random.choices(makers, weights)[0](scope)

    def reading(self, scope: Scope) -> list[Statement]:
        m, k = self.model(scope), self.number()
        options = [f"total({m})", f"read({m}, {k})", f"statics({m})", f"order({m})"]
        options += [f"leaf_sum(dx.state({m}, dx.Param))", f"leaf_sum(dx.state({m}))"]
        options += [f"same({self.node(scope)}, {self.node(scope)})", f"read({m}, {k}) * x"]
        if self.captured:
            reads = self.captured_reads(m, scope)
            options += [self.pick(reads), self.pick(reads)]
        return [f"y = y + {self.pick(options)}"]

    def watching(self, scope: Scope) -> list[Statement]:
        """Reads what calls of one function may see change."""
        m = self.model(scope)
        options = [f"statics({m})", f"statics({m})", f"order({m})", f"total({m})"]
        options += self.captured_reads(m, scope) if self.captured else []
        return [f"y = y + {text}" for text in self.random.sample(options, 2)]

    def captured_reads(self, m: str, scope: Scope) -> list[str]:
        return [
            "sum(rate * total(k) for k, rate in table.items())",
            f"table.get({m}, 0.0)",
            f"(2.0 if {m} in frozen else 0.0)",
            "sum(read(k, 0) for k in frozen)",
            "total(kept[0])",
            f"same(kept[-1], {m})",
            "total(pair)",
            "total(named['k'])",
            "bound(x)" if scope.may_count else "total(own)",
        ]

    def writing(self, scope: Scope) -> list[Statement]:
        m, k = self.model(scope), self.number()
        options = [f"bump({m}, {k}, jnp.sin(y))"] * 3 + [f"bump({m}, {k}, 0.125)", f"reraw({m}, {k}, jnp.sin(y))"]
        if self.captured:
            options += ["bump(kept[0], 1, jnp.sin(y))", "bump(net, 0, 0.25)", f"bump(named['k'], {k}, jnp.sin(y))"]
        options.append(f"dx.update({m}, jax.tree.map(lambda v: v * 0.5, dx.state({m}, dx.Param)))")
        options.append(f"dx.update({m}, jax.tree.map(lambda v: v * 0.5 + 0.25, dx.state({m}, dx.BatchStat)))")
        return [self.pick(options)]

    def changing(self, scope: Scope) -> list[Statement]:
        n, m, k = self.node(scope), self.node(scope), self.number()
        side, name = self.pick(("left", "right")), self.pick(("w", "s", "left", "right", "n", "extra"))
        rich = self.pick([model for model in scope.models if model in ("a", "p")] or [""])
        options: list[list[Statement]] = [
            [f"{n}.{side} = {m}"],
            [f"{n}.{side} = None"],
            [f"swap({n})"],
            [f"{n}.{side} = Node({k})"],
            [f"{n}.{side} = Declared(dx.Param(jnp.array([0.5, 0.25])), {k})"],
            [f"{n}.extra = dx.Param(jnp.sin(y) * jnp.ones(2))"],
            [f"drop({n}, {self.pick(('extra', 'raw', 's', 'memo', 'more'))!r})"],
            [f"share({n}, {m}, {name!r})"],
            [f"{n}.memo = dx.Cache(jnp.sin(y))"],
            [Block(f"if hasattr({m}, 'w'):", [f"{n}.more = {m}.w"])],
            [f"{n}.mode = {self.pick(MODES)}"],
            [f"{n}.mode = {self.pick(MODES)}"],
            [f"tag({self.model(scope)}, {k}, {self.pick(MODES[:5])})"],
            [f"popped = dx.pop({self.model(scope)}, dx.Cache)", "y = y + leaf_sum(popped)"],
            [f"copy = dx.clone({n})", f"bump(copy, {k}, jnp.sin(y))", f"{m}.{side} = copy"],
            [
                f"definition, values, rest = dx.split({n}, dx.Param, ...)",
                f"{m}.{side} = dx.merge(definition, values, rest)",
            ],
        ]
        if self.arrays:
            options.append([f"{n}.raw = jnp.cos(y) * jnp.ones(2)"])
        value = "jnp.sin(y)" if self.arrays else "dx.Param(jnp.sin(y))"
        if rich:
            on_containers: list[Statement] = [
                f"{rich}.items.append({m})",
                f"shrink({rich}.items)",
                f"{rich}.items.reverse()",
                f"{rich}.items.insert(0, {m})",
                f"{rich}.table['k{k}'] = {m}",
                f"last_first({rich}.table)",
                f"first_out({rich}.table)",
                f"{rich}.parts = dx.data([{m}, {value}])",
                f"{rich}.kinds = dx.data({{'z': {m}, 'a': {value}}})",
            ]
            options += [[Block(f"if hasattr({rich}, 'items'):", [line])] for line in on_containers]
        return self.pick(options)

    # ------------------------------------------------------------- functions in functions

    def function(self, name: str, head: str, scope: Scope, size: int, result: str = "y") -> Block:
        return Block(head.format(name), [*self.body(scope, size), f"return {result}"])

    def nested(self, scope: Scope) -> list[Statement]:
        makers = [self.call, self.gradient, self.rows, self.steps, self.branches, self.rule]
        if scope.depth == 0 and not scope.is_derived:
            makers += [self.call, self.loops, self.gradient]
        return self.pick(makers)(scope)

    def inner(self, scope: Scope, names: list[str], level: str, **how: Any) -> Scope:
        """The scope of a function with parameters of these names, which captures the others."""
        order = ("read", "write", "change")
        level = min(level, scope.level, key=order.index)
        outside = scope.models if self.random.random() < 0.4 else []
        is_derived, is_mapped = (how.get(name, getattr(scope, name)) for name in ("is_derived", "is_mapped"))
        may_count = scope.may_count and how.get("may_count", True)
        return Scope([*names, *outside], level, scope.depth + 1, is_derived, is_mapped, may_count)

    def call(self, scope: Scope) -> list[Statement]:
        f, q = self.name("f"), self.name("q")
        inner = self.inner(scope, [q], "change")
        shards = "dx.shard_map({}, mesh=mesh, in_specs=jax.P(), out_specs=jax.P())"
        if self.random.random() < 0.1:
            inner.level = min(inner.level, "write", key=("read", "write", "change").index)
            inner.depth = 2  # JAX refuses one in another
            block = self.function(f, f"def {{}}({q}, x, y):", inner, 2)
            return [block, f"y = y + jnp.sin({shards.format(f)}({self.node(scope)}, x, y))"]
        wrapped = self.pick(("dx.jit({})", "dx.remat({})", "dx.jit(dx.remat({}))", "dx.remat(dx.jit({}))"))
        if scope.level == "write" or (scope.depth == 0 and self.random.random() < 0.2):
            inner.level = min(inner.level, "write", key=("read", "write", "change").index)
        return [
            self.function(f, f"def {{}}({q}, x, y):", inner, 2),
            f"y = y + jnp.sin({wrapped.format(f)}({self.node(scope)}, x, y))",
        ]

    def gradient(self, scope: Scope) -> list[Statement]:
        f, q, g, m = self.name("loss"), self.name("q"), self.name("g"), self.node(scope)
        inner = self.inner(scope, [q], self.pick(("read", "write")), is_derived=True)
        # each of them depends on the model, and a step of it on its result
        block = self.function(f, f"def {{}}({q}, x):", inner, 2, "jnp.sin(y)")
        block.body.insert(0, f"y = jnp.sin(total({q}) + x)")
        if scope.level == "read" or self.random.random() < 0.2:
            return [block, f"y = y + dx.grad({f}, argnums=1)({m}, jnp.sin(x))"]
        kind = self.pick(("dx.Param", "dx.Param", "dx.BatchStat"))
        made = self.pick((f"dx.grad({f})", f"dx.grad({f}, argnums=dx.DiffState(0, {kind}))"))
        kind = "dx.Param" if "DiffState" not in made else kind
        lines: list[Statement] = [block, f"{q} = {m}", f"{g} = {made}({q}, x)"]
        if self.random.random() < 0.4:
            lines[-1] = f"value, {g} = dx.value_and_grad{made[7:]}({q}, x)"
            lines.append("y = y + value")
        lines.append(f"dx.update({q}, jax.tree.map(tuned, dx.state({q}, {kind}), {g}))")
        return [Block(f"if has({m}, {kind}):", lines)]

    def rows(self, scope: Scope) -> list[Statement]:
        """`vmap`, over an array or a model with an axis."""
        f, q = self.name("f"), self.name("q")
        way = self.random.random()
        if way < 0.5:
            inner = self.inner(scope, [q], "read", is_mapped=True)
            block = self.function(f, f"def {{}}({q}, x):", inner, 2)
            block.body.insert(0, "y = jnp.sin(x)")
            if scope.level != "read" and self.random.random() < 0.5:
                block.body.insert(1, f"bump({q}, {self.number()}, 0.125)")
            return [block, f"y = y + jnp.sum(dx.vmap({f}, in_axes=(None, 0))({self.node(scope)}, xs))"]
        block = Block(f"def {f}({q}, x):", ["y = jnp.sin(x)"])
        inner = Scope([q], "write", 2, scope.is_derived)
        captured, self.captured = self.captured, False
        block.body += self.body(inner, 2) + ["return y"]
        self.captured = captured
        stack = self.name("stack")
        made = f"{stack} = dx.vmap(lambda x: Declared(dx.Param(jnp.array([0.5, 0.25]) * x), 1))(xs)"
        lines: list[Statement] = [block, made, f"y = y + jnp.sum(dx.vmap({f})({stack}, xs)) + total({stack})"]
        if self.random.random() < 0.3:
            step = f"lambda y, m, x: (jnp.sin(y + {f}(m, x)), y * x)"
            scanned = f"dx.scan({step}, in_axes=(dx.Carry, 0, 0), out_axes=(dx.Carry, 0))(y, {stack}, xs)"
            lines[-1] = f"y = y + leaf_sum({scanned}) + total({stack})"
        if scope.level == "change":
            lines.append(
                f"{self.node(scope)}.left = dx.vmap(lambda m, x: Declared(dx.Param(m.w.value[0] + x), 2))({stack}, xs)"
            )
        return lines

    def steps(self, scope: Scope) -> list[Statement]:
        """`scan`."""
        f, q = self.name("f"), self.name("q")
        inner = self.inner(scope, [q], "write")
        block = self.function(f, f"def {{}}({q}, y, x):", inner, 2, f"jnp.sin(y), jnp.sin(total({q}))")
        axis = "None"  # a model with `Carry` has to be returned, and there is one `Carry`
        c, ys = self.name("c"), self.name("ys")
        scan = f"dx.scan({f}, in_axes=({axis}, dx.Carry, 0), out_axes=(dx.Carry, 0))"
        line = f"{c}, {ys} = {scan}({self.node(scope)}, y, xs)"
        return [block, line, f"y = y + {c} + jnp.sum({ys})"]

    def loops(self, scope: Scope) -> list[Statement]:
        f, q, m = self.name("f"), self.name("q"), self.node(scope)
        inner = self.inner(scope, [q], "write")
        if self.random.random() < 0.5:
            block = Block(f"def {f}(i, value):", [f"{q}, y = value", "x = y * 0.5"])
            block.body += [*self.body(inner, 2), f"return {q}, jnp.sin(y)"]
            line = f"{q}, y = dx.fori_loop(0, 3, {f}, ({m}, y))"
        else:
            block = Block(f"def {f}(value):", [f"{q}, y, i = value", "x = y * 0.5"])
            block.body += [*self.body(inner, 2), f"return {q}, jnp.sin(y), i + 1"]
            line = f"{q}, y, i = dx.while_loop(lambda value: value[2] < 2, {f}, ({m}, y, jnp.array(0, jnp.int32)))"
        return [block, line, f"y = y + same({q}, {m})"]

    def branches(self, scope: Scope) -> list[Statement]:
        names = [self.name("f") for _ in range(self.pick((2, 2, 3)))]
        q = self.name("q")
        inner = self.inner(scope, [q], "write", may_count=not scope.is_mapped)
        blocks = [self.function(f, f"def {{}}({q}, x, y):", inner, 2, "jnp.sin(y)") for f in names]
        if len(names) == 2:
            how = f"dx.cond(jnp.cos(y) > 0.25, {', '.join(names)}"
        else:
            how = f"dx.switch((jnp.sin(y) * 3).astype(jnp.int32), [{', '.join(names)}]"
        return [*blocks, f"y = y + {how}, {self.node(scope)}, x, y)"]

    def rule(self, scope: Scope) -> list[Statement]:
        """`custom_vjp`, whose rule is no derivative."""
        return [f"y = y + clipped({self.node(scope)}, x)"]

    # ------------------------------------------------------------- programs

    def program(self) -> list[Statement]:
        """Models, functions of them, and calls and changes of both."""
        self.captured = self.random.random() < 0.7
        # values of models that have Variables only are kept from call to call
        self.arrays = self.random.random() < 0.5
        b = "Bare(2)" if self.arrays else "Node(2)"
        setup: list[Statement] = [f"a, b, c, net = Rich(1), {b}, Node(3), Node(4)", "x = jnp.array(0.5)"]
        setup += ["xs = jnp.array([0.25, -0.5])", "a.left = b", "y = jnp.array(0.0)"]
        setup += self.pick(
            ([], ["b.left = c"], ["b.left = a"], ["c.w = b.w"], ["c.right = c"], ["b.right = a.items[0]"])
        )
        setup += ["def has(m, kind):", "    return len(jax.tree.leaves(dx.state(m, kind))) > 0"]
        if self.captured:
            setup += ["table, frozen, kept = {net: 0.5, b: 0.25}, {c}, [net, c]", "pair, named = (b, net), {'k': c}"]
            setup += ["class Bound(Node):", "    def forward(self, x):", "        self.n.value = self.n.value + 1"]
            setup += ["        return total(self) * x", "own = Bound(2)", "bound = own.forward"]
        setup += CUSTOM
        shown = "a=a, b=b, c=c, net=net, y=y" + (
            ", table=table, frozen=frozen, kept=kept, own=own" if self.captured else ""
        )
        lines: list[Statement] = [*setup]
        functions = []
        for _ in range(self.pick((1, 2, 2))):
            name = self.name("step")
            models = ["p", "q"] + (["net"] if self.captured else []) + (["b"] if self.random.random() < 0.2 else [])
            scope = Scope([m for m in models if m != "net"], self.pick(("change", "change", "write")))
            style = self.random.random()
            result = self.pick(("jnp.sin(y)", "jnp.sin(y)", "(jnp.sin(y), q)", "[jnp.sin(y), {'k': node(p, 2)}]"))
            if style < 0.6:
                head, arguments = f"def {name}(p, q, x, k=0):", "{0}, {1}, x"
            elif style < 0.8:
                head, arguments = f"def {name}(models, x, k=0):", "[{0}, {1}], x"
            else:
                head, arguments = f"def {name}(models, x, k=0):", "{{'p': {0}, 'q': {1}}}, x"
            block = Block(head, ["y = jnp.sin(x)"])
            if style >= 0.6:
                block.body.insert(0, "p, q = models" if style < 0.8 else "p, q = models['p'], models['q']")
            block.body += [*self.body(scope, 3), *self.watching(scope), Block("if k is True:", self.body(scope, 1))]
            block.body += [Block("if k == 'fail':", ["raise KeyError(k)"]), f"return {result}"]
            lines += ["@dx.jit(static_argnames='k')", block]
            functions.append((name, arguments))
        if self.random.random() < 0.4:
            lines += ["trainer = Trainer(Node(5))"]
            shown += ", trainer=trainer"
        lines.append(f"look({shown})")
        scope = Scope(["a", "b", "c"], "change", depth=1)
        name, arguments = self.pick(functions)
        call = arguments.format("a", self.pick("abc"))
        for _ in range(7):
            what = self.random.random()
            if what < 0.6:
                if self.random.random() < 0.5:  # otherwise the last call again, after changes
                    name, arguments = self.pick(functions)
                    call = arguments.format(self.pick("aab"), self.pick("abc"))
                    call += self.pick(("", "", "", ", k=1", ", k=True"))
                lines += [f"r = {name}({call})", f"look(r=r, {shown})"]
                if self.random.random() < 0.5:
                    lines += [f"r = {name}({call})", f"look(r=r, {shown})"]
                if self.random.random() < 0.15:
                    failing = f"r = {name}({arguments.format(self.pick('ab'), 'b')}, k='fail')"
                    lines += [Block("try:", [failing]), Block("except KeyError:"), f"look({shown})"]
            elif what < 0.7 and "trainer" in shown:
                lines += ["r = trainer.step(x)", f"look(r=r, {shown})"]
            elif what < 0.8 and self.captured:
                lines += [self.pick(CAPTURES), f"look({shown})"]
            elif what < 0.85:
                model = self.pick("aab")
                for value in self.pick(EQUAL):
                    lines += [f"{model}.mode = {value}", f"r = {name}({call})", f"look(r=r, {shown})"]
            else:
                lines += [*self.statement(scope), f"look({shown})"]
        if self.random.random() < 0.5:  # captured from a closure, not from the module
            lines = [Block("def program():", lines), "program()"]
        return lines


CUSTOM = [
    "@dx.custom_vjp",
    "def clipped(m, x):",
    "    return jnp.sin(total(m)) * x",
    "def forward(m, x):",
    "    return jnp.sin(total(m)) * x, (jax.tree.map(lambda w: w * 0.5, dx.state(m, dx.Param)), x)",
    "def backward(residuals, cotangent):",
    "    _, g = cotangent",
    "    return jax.tree.map(lambda w: w * g, residuals[0]), 3.0 * g * residuals[1]",
    "clipped.defvjp(forward, backward)",
]
CAPTURES = (
    "net = Node(6)",
    "kept[0] = c",
    "kept.append(Node(1))",
    "frozen.add(b)",
    "frozen.discard(c)",
    "table[c] = 0.75",
    "table.pop(b, None)",
    "named['k'] = b",
    "pair = (c, c)",
    "own.mode = 3",
    "own.left = net",
)


def program(seed: int) -> list[Statement]:
    return Maker(seed).program()


def smaller(program: list[Statement], fails: Callable[[str], bool]) -> list[Statement]:
    """A program without the statements that a failure does not need."""
    is_done = False
    while not is_done:
        is_done = True
        for statements in list(_bodies(program)):
            for i in reversed(range(len(statements))):
                gone = statements.pop(i)
                candidates = [[], gone.body] if isinstance(gone, Block) else [[]]
                for instead in candidates:  # without it, or with its body in its place
                    statements[i:i] = instead
                    if fails(source_of(program)):
                        is_done = False
                        break
                    del statements[i : i + len(instead)]
                else:
                    statements.insert(i, gone)
    return program


def _bodies(statements: list[Statement]) -> Iterator[list[Statement]]:
    yield statements
    for statement in statements:
        if isinstance(statement, Block):
            yield from _bodies(statement.body)
