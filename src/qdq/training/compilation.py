"""How JAX is set up for us: compiled programs are kept between runs, and small calls are answered at once."""

import os
from pathlib import Path

VECTOR_WIDTH = "--xla_cpu_prefer_vector_width"


def configure_jax() -> None:
    """Turn on JAX's persistent cache in our cache folder, unless the user has chosen one, and direct calls on the CPU.

    Handing a call over to another thread costs more than a small policy's whole answer, and a training chunk is
    waited for anyway.
    """
    import jax

    from qdq.storage import cache_directory

    use_wide_vectors(Path("/proc/cpuinfo"))
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def use_wide_vectors(description: Path) -> None:
    """Let XLA use all of AVX-512 where the processor has it, unless the user has chosen; its own choice is half.

    JAX reads its flags when it first looks for devices, so this must come before.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if VECTOR_WIDTH not in flags and description.exists() and "avx512f" in description.read_text(errors="replace"):
        os.environ["XLA_FLAGS"] = f"{VECTOR_WIDTH}=512 {flags}".strip()  # first: words without dashes end the reading


def join_others() -> None:
    """Make this process one of several of a distributed run, before JAX is used for anything else."""
    import jax

    from qdq.errors import UsageError

    count, number = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(
            num_processes=None if count is None else int(count), process_id=None if number is None else int(number)
        )
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"The other processes of the run were not found ({str(error).splitlines()[0]}); set JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID, or leave out --distributed."
        ) from error
