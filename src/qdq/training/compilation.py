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
