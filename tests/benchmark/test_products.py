"""Counting matrix products against counts by hand."""

from collections import Counter

import jax
import jax.numpy as jnp

from qdq.benchmark.cases import Shape, algorithm_case
from qdq.benchmark.products import Bare, Product, gigaflop, products_of


def test_forward_and_backward_of_a_layer() -> None:
    x, w = jnp.ones((8, 3)), jnp.ones((3, 5))
    assert products_of(lambda w: x @ w, w) == Counter({Product(8, 3, 5): 1})
    found = products_of(lambda w, x: jax.grad(lambda w, x: jnp.sum((x @ w) ** 2), argnums=(0, 1))(w, x), w, x)
    assert sum(found.values()) == 3  # forward, gradient of the weights, gradient of the input
    assert gigaflop(found) == 3 * 2 * 8 * 3 * 5 / 1e9


def test_loops_multiply_branches_take_the_costlier_and_batches_count_each() -> None:
    x = jnp.ones((4, 4))

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (carry @ x, None), x, None, length=7)[0]

    assert products_of(loop, x) == Counter({Product(4, 4, 4): 7})
    branch = products_of(lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x @ x, lambda: x @ x), x)
    assert branch == Counter({Product(4, 4, 4): 2})
    assert products_of(lambda a: a @ a, jnp.ones((5, 4, 4))) == Counter({Product(4, 4, 4): 5})


def test_td3_bc_needs_what_its_definition_says() -> None:
    shape = Shape(observation_size=11, action_size=3, transitions=2_000, batch_size=256)
    case = algorithm_case("td3-bc", shape)
    found = gigaflop(products_of(case.one_cycle, case.state, case.data, jax.random.key(0)))
    rows, wide = 256, 256
    critic = [(14, wide), (wide, wide), (wide, 1)]
    policy = [(11, wide), (wide, wide), (wide, 3)]

    def layers(network: list[tuple[int, int]], passes: float) -> float:
        return sum(2 * rows * a * b for a, b in network) * passes / 1e9

    critic_step = layers(policy, 1) + layers(critic, 2) + 2 * layers(critic, 3)  # targets; forward and two gradients
    policy_step = layers(policy, 3) + layers(critic, 2)  # the critic only passes its gradient on
    expected = 2 * critic_step + policy_step
    # The gradients of the networks' own inputs are never needed, which saves a few per cent of the count above.
    assert 0.9 * expected < found <= expected * 1.001


def test_bare_products_take_time_on_both_sides() -> None:
    by_numpy, by_jax = Bare(Counter({Product(256, 256, 256): 4, Product(8, 3, 1): 2})).seconds()
    assert by_numpy > 0
    assert by_jax > 0
