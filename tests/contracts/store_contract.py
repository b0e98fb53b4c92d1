"""What `autotune.engine.ports.StudyStore` promises, for every implementation.

A test class inherits `StoreContract` and provides the fixtures `store` and `clock`; the store tells time by
the clock.
"""

from __future__ import annotations

from tests.contracts.store_log_and_leases import StoreLogAndLeases
from tests.contracts.store_of_devices import StoreOfDevices
from tests.contracts.store_of_studies import StoreOfStudies
from tests.contracts.store_of_trials import StoreOfTrials


class StoreContract(StoreOfStudies, StoreOfTrials, StoreOfDevices, StoreLogAndLeases):
    """All of it."""
