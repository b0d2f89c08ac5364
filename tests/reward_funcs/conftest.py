"""What the tests of the sandbox share."""

from __future__ import annotations

import pytest

from reward_funcs.sandbox import SandboxError, usable_jail


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
def jail(request: pytest.FixtureRequest, missing) -> str:
    """Each jail that holds on this machine. What a package would bring is missing; what the kernel refuses is not."""
    try:
        return usable_jail([request.param])
    except SandboxError as error:
        if "is not installed" in str(error):
            missing(f"bubblewrap is not installed; apt-get install bubblewrap ({error})")
        pytest.skip(str(error))
