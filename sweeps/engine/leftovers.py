"""Frees what dead trainers hold: their placement groups outlive them, and others wait for ever for those."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.state import list_actors, list_placement_groups
from ray.util.state.exception import RayStateApiException

logger = logging.getLogger(__name__)

LOOK_SECONDS = 15.0
LIMIT = 10_000  # actors and groups that one look takes in


@contextlib.contextmanager
def leftovers_freed() -> Iterator[None]:
    """Meanwhile, look for such groups now and then.

    Ray Train has a cleaner of its own, which a trainer meets only when its workers have started.
    """
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(done,), name="leftovers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(done: threading.Event) -> None:
    suspects: set[str] = set()
    while not done.wait(LOOK_SECONDS):
        try:
            idle = _idle()
        except (RayStateApiException, ConnectionError, ValueError) as error:
            logger.warning("resources of a trainer that dies may stay taken: Ray tells no states (%s)", error)
            return
        for key in idle & suspects:  # at two looks, as a group is idle too until its first actor is made
            logger.warning("freeing placement group %s, which nothing alive uses", key)
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(key))))
        suspects = idle


def _idle() -> set[str]:
    """Ids of this job's placement groups that hold resources for no actor."""
    context = ray.get_runtime_context()
    address, job = context.gcs_address, context.get_job_id()
    groups = list_placement_groups(
        address, filters=[("creator_job_id", "=", job), ("state", "=", "CREATED")], limit=LIMIT
    )
    actors = list_actors(
        address, filters=[("job_id", "=", job), ("state", "!=", "DEAD")], limit=LIMIT, detail=True
    )
    return {group.placement_group_id for group in groups} - {actor.placement_group_id for actor in actors}
