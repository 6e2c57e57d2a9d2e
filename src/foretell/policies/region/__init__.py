"""Regions (where the answer is) by the name used in recipes and on the command line."""

from __future__ import annotations

from foretell.policies.region.after import After
from foretell.policies.region.boxed import Boxed
from foretell.policies.region.delimiter import Delimiter
from foretell.policies.region.fixed import Fixed
from foretell.policies.region.json import Json
from foretell.policies.region.masked import Masked
from foretell.policies.region.pattern import Pattern
from foretell.policies.region.whole import Whole

REGIONS: dict[str, type] = {
    "after": After,
    "boxed": Boxed,
    "delimiter": Delimiter,
    "fixed": Fixed,
    "json": Json,
    "masked": Masked,
    "pattern": Pattern,
    "whole": Whole,
}
