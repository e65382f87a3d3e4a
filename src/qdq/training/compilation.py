"""How JAX is set up for us: compiled programs are kept between runs, and small calls are answered at once."""

import os


def configure_jax() -> None:
    """Turn on JAX's persistent cache in our cache folder, unless the user has chosen one, and direct calls on the CPU.

    Handing a call over to another thread costs more than a small policy's whole answer, and a training chunk is
    waited for anyway.
    """
    import jax

    from qdq.storage import cache_directory

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


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
