"""Where the answer is: regions, by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.region.after import After
from foretell.policies.region.fixed import Fixed
from foretell.policies.region.masked import Masked
from foretell.policies.region.whole import Whole

REGIONS: dict[str, type] = {"after": After, "fixed": Fixed, "masked": Masked, "whole": Whole}
