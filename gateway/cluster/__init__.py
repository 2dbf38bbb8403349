"""The cluster: several nodes on one PostgreSQL, each of which owns some of the shards. See `docs/cluster.md`."""
