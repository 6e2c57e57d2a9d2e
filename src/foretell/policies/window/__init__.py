"""Which masks are looked at: windows, by the name used in recipes; a part of every cache policy."""

from __future__ import annotations

from foretell.policies.window.decayed import Decayed
from foretell.policies.window.everything import Everything
from foretell.policies.window.near import Near

WINDOWS: dict[str, type] = {"decayed": Decayed, "everything": Everything, "near": Near}
