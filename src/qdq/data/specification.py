"""Gymnasium's environment specs, as Minari stores them, to and from a dataset's metadata."""

import copy
import warnings
from typing import Any

from qdq.data.episodes import Metadata
from qdq.data.mazes import register_robotics
from qdq.storage import parse_json


def specification_of(metadata: Metadata) -> Any:
    """Gymnasium's spec of the environment, so that Minari can recover it; none where it is not installed."""
    import gymnasium

    if metadata.environment_id is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        register_robotics(metadata.environment_id)
        try:
            specification = gymnasium.spec(metadata.environment_id)
        except gymnasium.error.Error:
            return None
    specification = copy.deepcopy(specification)
    options = dict(metadata.environment_options)
    specification.max_episode_steps = options.pop("max_episode_steps", specification.max_episode_steps)
    specification.kwargs.update(options)
    return specification


def environment_of(header: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The environment of a Minari header, and the options in which it differs from its registration."""
    text = header.get("eval_env_spec") or header.get("env_spec")
    try:
        specification = parse_json(text) if isinstance(text, str) else {}
    except ValueError:
        specification = {}
    if not isinstance(specification, dict) or not isinstance(specification.get("id"), str):
        return None, {}
    options = specification.get("kwargs")
    options = dict(options) if isinstance(options, dict) else {}
    if isinstance(specification.get("max_episode_steps"), int):
        options["max_episode_steps"] = specification["max_episode_steps"]
    registered = specification_of(Metadata(environment_id=specification["id"]))
    if registered is not None:
        known = {**registered.kwargs, "max_episode_steps": registered.max_episode_steps}
        options = {key: value for key, value in options.items() if key not in known or known[key] != value}
    return specification["id"], options
