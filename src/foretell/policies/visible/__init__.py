"""Visible policies (which masks exist for a pass) by the name used in recipes; every cache policy has one."""

from __future__ import annotations

from foretell.policies.visible.decayed import Decayed
from foretell.policies.visible.everything import Everything
from foretell.policies.visible.near import Near

VISIBLE: dict[str, type] = {"decayed": Decayed, "everything": Everything, "near": Near}
