"""How fast and how small: measurements that anybody can run again. See benchmarks/README.md."""
