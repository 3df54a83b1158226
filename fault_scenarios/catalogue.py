"""The programs of this folder, and what ``desync watch`` must say of each.

The expectations hold for gloo on CPU.  On NCCL a shape mismatch does not abort; everything else should be the same.
"""

from __future__ import annotations

from fault_scenarios.faults import FAULTS
from fault_scenarios.healthy import HEALTHY
from fault_scenarios.orders import ORDERS
from fault_scenarios.pending import PENDING
from fault_scenarios.scenario import FOLDER, HANG_KILLED, READY, OutsideAction, Scenario
from fault_scenarios.standstills import STANDSTILLS

__all__ = ["FOLDER", "HANG_KILLED", "PENDING", "READY", "SCENARIOS", "OutsideAction", "Scenario"]

SCENARIOS = (*FAULTS, *ORDERS, *STANDSTILLS, *HEALTHY)
"""All of them, broken ones first."""
