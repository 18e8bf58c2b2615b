"""Test settings: two host devices, tracer leak checks off unless asked for."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
