"""Processor time of the path in this version of shoal and in another one."""
