"""The matrix products inside a function, found by tracing it, and the time that they need on their own.

A step's arithmetic is its matrix products; everything else (activations, normalisation, optimiser, sampling) is
overhead. The utilisation of a step is the time of its own list of products over the time of the step.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


class Product(NamedTuple):
    """A (rows x inner) matrix times an (inner x columns) one."""

    rows: int
    inner: int
    columns: int

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


Products = Counter[Product]


def gigaflop(products: Products) -> float:
    """Billions of floating-point operations in a list of products."""
    return sum(product.operations * count for product, count in products.items()) / 1e9


def products_of(function: Callable[..., Any], *arguments: Any) -> Products:
    """The matrix products that one call of `function` performs; of two branches the costlier one."""
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Jaxpr) -> Products:
    found: Products = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            batch, product = _shape(equation)
            if product.operations > 0:
                found[product] += batch
            continue
        inner = [_count(part) for part in _subprograms(equation.params)]
        if not inner:
            continue
        if equation.primitive.name == "cond":
            found += max(inner, key=gigaflop)
            continue
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for part in inner:
            found += Counter({product: times * count for product, count in part.items()})
    return found


def _subprograms(parameters: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in parameters.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def _shape(equation: JaxprEqn) -> tuple[int, Product]:
    """The number of products in a `dot_general`, and the shape of each."""
    (contracted, _), (batched, _) = equation.params["dimension_numbers"]
    left, right = (tuple(variable.aval.shape) for variable in equation.invars)  # pyright: ignore[reportAttributeAccessIssue]
    inner = math.prod(left[axis] for axis in contracted)
    batch = math.prod(left[axis] for axis in batched)
    return batch, Product(math.prod(left) // max(inner * batch, 1), inner, math.prod(right) // max(inner * batch, 1))


def _operands(products: Iterable[Product]) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return [
        (
            random.standard_normal((product.rows, product.inner), np.float32),
            random.standard_normal((product.inner, product.columns), np.float32),
        )
        for product in products
    ]


class Bare:
    """A list of products ready to be timed, by NumPy and by jitted JAX."""

    def __init__(self, products: Products):
        # Long lists repeat few shapes: time each shape as often as it occurs.
        self.counts = list(products.values())
        self.host = _operands(products)
        self.device = jax.device_put(self.host)
        counts = self.counts

        def run(operands: list[tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
            results = []
            for (left, right), count in zip(operands, counts, strict=True):
                # Each repeat takes a slightly different matrix, so that none can be left out.
                def body(carry: jax.Array, _: None, left: jax.Array = left, right: jax.Array = right) -> Any:
                    product = (left + carry) @ right
                    return product[0, 0] * 1e-30, None

                results.append(jax.lax.scan(body, jnp.zeros(()), None, length=count)[0])
            return results

        self.compiled = jax.jit(run).lower(self.device).compile()

    def seconds(self) -> tuple[float, float]:
        """Processor seconds of one pass by NumPy, and by JAX."""
        began = time.process_time()
        for (left, right), count in zip(self.host, self.counts, strict=True):
            for _ in range(count):
                np.matmul(left, right)
        middle = time.process_time()
        jax.block_until_ready(self.compiled(self.device))
        return middle - began, time.process_time() - middle
