"""Test settings: two host devices beside what XLA_FLAGS says, which comes last."""

import os

_DEVICES = "--xla_force_host_platform_device_count"
_flags = os.environ.get("XLA_FLAGS", "")
if _DEVICES not in _flags:
    os.environ["XLA_FLAGS"] = f"{_DEVICES}=2 {_flags}".rstrip()
