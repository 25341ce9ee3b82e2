"""Every kind of fault by name: how it is tried, and how much of it is a short run and a long one."""

from __future__ import annotations

from typing import NamedTuple

from faults.clock_jumps import clock_jumps
from faults.delayed import delayed_messages
from faults.descriptors import out_of_descriptors
from faults.disk_full import full_disks
from faults.expiry import cuts_while_files_expire, recoveries_of_expired_logs
from faults.failed_sync import failed_syncs
from faults.killed_rebuild import killed_rebuilds
from faults.killed_repair import killed_repairs
from faults.log_cuts import garbage_after_the_end, log_cuts
from faults.log_damage import damage_in_the_middle
from faults.log_flips import flips
from faults.lost_files import lost_files
from faults.outcome import Kind
from faults.power_cut import kills_during_recovery, power_cuts
from faults.shared_logs import stores_sharing_a_log
from faults.sparse_files import sparse_files


class Tried(NamedTuple):
    """One kind: in a long run it gets `share` of the images, or of the rounds if it is measured in rounds."""

    kind: Kind
    short: int
    share: float = 1.0
    in_rounds: bool = False


KINDS: dict[str, Tried] = {
    "power cut between any two events": Tried(power_cuts, 200),
    "kill or power cut again during recovery": Tried(kills_during_recovery, 100, 0.3),
    "power cut while retention deletes files": Tried(cuts_while_files_expire, 150, 0.3),
    "kill or power cut again while that is recovered": Tried(recoveries_of_expired_logs, 50, 0.1),
    "the log cut at every byte of its last three records": Tried(log_cuts, 400),
    "every byte of one record flipped": Tried(flips, 1200, 2.0),
    "damage among flushed records": Tried(damage_in_the_middle, 150, 0.2),
    "garbage after the end, stale bytes ahead of it": Tried(garbage_after_the_end, 150, 0.2),
    "any other file deleted or garbled": Tried(lost_files, 200, 0.3),
    "a disk of 64 MiB filled under load": Tried(full_disks, 1, in_rounds=True),
    "sparse last files, then a full disk": Tried(sparse_files, 3, in_rounds=True),
    "a sync that fails once": Tried(failed_syncs, 75, 0.2),
    "a wall clock that jumps": Tried(clock_jumps, 75, 0.2),
    "a repair ended anywhere, and begun again": Tried(killed_repairs, 75, 0.2),
    "a rebuild ended anywhere, then a start": Tried(killed_rebuilds, 100, 0.2),
    "two stores given one directory": Tried(stores_sharing_a_log, 100, 0.2),
    "messages for later, cut anywhere": Tried(delayed_messages, 40, 0.05),
    "no file descriptors left": Tried(out_of_descriptors, 10, 5.0, in_rounds=True),
}
