"""Which masks are looked at: windows, by the name used in recipes; a part of every cache policy."""

from __future__ import annotations

from foretell.policies.visible.decayed import Decayed
from foretell.policies.visible.everything import Everything
from foretell.policies.visible.near import Near

VISIBLE: dict[str, type] = {"decayed": Decayed, "everything": Everything, "near": Near}
