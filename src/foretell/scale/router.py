"""Ray Serve's request router of the replicas: it sends requests of one group to one replica.

It counts what each replica has, because Serve's own limit would also hold back calls such as that for the metrics.
Serve pickles this module by value, so it has no state of its own.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from foretell.scale.routing import BALANCE, rank_replicas, watch


class GroupRouter(RequestRouter):  # type: ignore[misc]  # Ray is not checked
    """Tries replicas that are not full in the order of `rank_replicas`. Serve takes the first that answers."""

    balance, capacity = BALANCE, 0

    def initialize_state(self, capacity: int, balance: float = BALANCE) -> None:
        """Allow every replica `capacity` requests at the same time."""
        self.balance, self.capacity = balance, capacity

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        group = "" if pending_request is None else pending_request.kwargs.get("group", "")
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # before all replicas are asked again
        replicas = {one.replica_id.unique_id: one for one in candidate_replicas}
        loads = watch().loads(replicas)
        order = rank_replicas(group, loads, watch().silent(), self.balance)
        return [[replicas[name]] for name in order if loads[name] < self.capacity]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        watch().note_sent(replica_id.unique_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        watch().note_refused()  # unless on_request_routed follows at once

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        super().on_request_routed(pending_request, replica_id, result)
        watch().note_accepted(replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, *args: Any, **options: Any) -> None:
        super().on_request_completed(replica_id, *args, **options)
        watch().note_done(replica_id.unique_id)
