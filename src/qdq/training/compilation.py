"""Compiled programs are kept between runs, so that a second run of the same shapes starts at once."""

import os


def keep_compiled_programs() -> None:
    """Turn on JAX's persistent cache in our cache folder, unless the user has chosen one."""
    import jax

    from qdq.storage import cache_directory

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
