"""Commands that explain: presets and doctor."""

from typing import Annotated

import tyro
from tyro.conf import Positional

NameArgument = Annotated[Positional[str], tyro.conf.arg(metavar="NAME")]


def list_presets() -> None:
    """List every preset."""
    from qdq.presets import PRESETS

    width = max(map(len, PRESETS))
    for name, preset in PRESETS.items():
        print(f"{name:<{width}}  {preset.description}")


def show(name: NameArgument, /, algorithm: str = "qdq") -> None:
    """Print every value of a preset, what it means and where it comes from.

    Args:
        name: A preset, such as fast or paper/hopper-medium.
        algorithm: qdq, bc, td3-bc or iql.
    """
    import dataclasses

    from qdq import config as configuration
    from qdq import presets

    built, sources = presets.build(algorithm, name)
    print(f"preset {name}, algorithm {algorithm}: {presets.PRESETS[name].description}")
    for section, values in configuration.sections(built).items():
        print()
        for field in dataclasses.fields(values):
            key, value = f"{section}.{field.name}", getattr(values, field.name)
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            print(f"{key} = {text}")
            print(f"    {field.metadata['help']}  [{sources[key]}]")


def doctor() -> None:
    """Check the installation: versions, devices and a self-test of about five seconds."""
    import os
    import time

    from qdq.training.compilation import configure_jax
    from qdq.training.versions import machine, versions

    configure_jax()
    # The self-test compiles for longer than it trains, so nothing is optimised. JAX reads its flags when it is first used.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
    for name, version in versions().items():
        print(f"{name:<12} {version}")
    for name, value in machine().items():
        print(f"{name:<12} {value}")
    began = time.monotonic()
    from qdq.evaluation.selftest import self_test

    for line in self_test():
        print(line)
    print(f"self-test passed in {time.monotonic() - began:.1f} s")
