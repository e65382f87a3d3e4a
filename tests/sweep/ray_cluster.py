"""A Ray cluster of two nodes on this machine, driven through standard input: `lose` kills the second node, the end stops all."""

import os
import sys

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}  # patient with a busy machine

from ray.cluster_utils import Cluster


def main() -> None:
    """Start the nodes, print the cluster's address, and obey."""
    common = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**common, "node_ip_address": "127.0.0.2"})
    second = cluster.add_node(**common, node_ip_address="127.0.0.3")
    print(f"address {cluster.address}", flush=True)
    for line in sys.stdin:
        if line.strip() == "lose":
            cluster.remove_node(second, allow_graceful=False)
            print("lost", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
