"""`make soak KIND=fuzz-kernel`: millions of mutated records and derived files through the compiled kernel.

Two builds read half of the inputs each: one with AddressSanitizer, where every buffer has its own memory, and
one in which every index is checked. Some inputs are also read by the interpreted kernel, which must say the same.
Exit code 0 if nothing was reported and nothing differed.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import random
import secrets
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client"))
sys.path.remove(str(Path(__file__).resolve().parent))

KERNEL = ROOT / "protocol" / "reput_protocol" / "kernel"
T0 = 1_700_000_000_000
_SLOTS = 5
_ENTRIES = 12
_COMPARED = 500
"""Every so many inputs are read by the interpreted kernel too."""
_SANITIZER = "-fsanitize=address -fno-omit-frame-pointer -g"
_TEXTS = (
    b"", b"TAGS\x01paid\x02", b"UNIQ_KEY\x017F0000010001\x02TAGS\x01t\x02KEYS\x01a  b \x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01gr\xc3\xbcn\x02", b"a\x01b\x02__CRC32#\x010123456789\x02", b"DELAY\x013\x02", b"noise",
)  # fmt: skip


def main() -> int:
    """Parse the arguments, compile, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=None, help="repeat the inputs of an earlier run")
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compared", type=int, default=_COMPARED, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    if arguments.library is not None:
        return _fuzz(arguments.library, arguments.cases, arguments.compared, seed)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="reput-kernel-") as directory:
        builds = [_start(how, Path(directory), arguments.cases // 2, seed) for how in ("sanitized", "checked")]
        codes = [build.wait() for build in builds]
    print("FAILED" if any(codes) else "no report")
    return 1 if any(codes) else 0


def _start(how: str, directory: Path, cases: int, seed: int) -> subprocess.Popen[bytes]:
    from hatch_build import compile_kernel

    place = directory / how
    place.mkdir()
    environment = {**os.environ, "PYTHONMALLOC": "malloc"}
    os.environ["REPUT_KERNEL_CFLAGS"] = _SANITIZER if how == "sanitized" else ""
    library = compile_kernel(KERNEL, place, checked=how == "checked")[0].parent
    if how == "sanitized":
        found = subprocess.run(["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
        environment |= {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"}
    command = [sys.executable, __file__, "--library", str(library), "--cases", str(cases), "--seed", str(seed)]
    return subprocess.Popen(command, env=environment)


def _fuzz(library: Path, cases: int, compared: int, seed: int) -> int:
    unraised: list[str] = []
    sys.unraisablehook = lambda report: unraised.append(f"{report.exc_type.__name__}: {report.exc_value}")
    interpreted = _load(KERNEL, importlib.machinery.SOURCE_SUFFIXES)
    kernel = _load(library, importlib.machinery.EXTENSION_SUFFIXES)
    rng = random.Random(seed)
    samples = _samples()
    started_at = time.monotonic()
    outcomes = {"sound": 0, "refused": 0}
    for case in range(cases):
        kind, data = rng.choice(samples)
        changed = _mutated(rng, data)
        choice = rng.random()
        found = _read(kernel, kind, changed, choice)
        outcomes["sound" if found[0] is not None else "refused"] += 1
        if case % compared == 0 and found != (other := _read(interpreted, kind, changed, choice)):
            print(f"the forms differ on {kind} {bytes(changed).hex()} ({choice}): {found} and {other}")
            return 1
        if unraised:
            print(f"{unraised[0]} on {kind} {bytes(changed).hex()} ({choice})")
            return 1
    took_s = time.monotonic() - started_at
    counts = ", ".join(f"{count:,} {name}" for name, count in outcomes.items())
    print(f"{library.parts[-4]}: {cases:,} inputs, {counts}, {took_s:.0f} s", flush=True)
    return 0


def _read(kernel: SimpleNamespace, kind: str, data: bytearray, choice: float) -> list[Any]:
    """Have a kernel do with these bytes all that a broker or client does with bytes of this kind."""
    if kind == "batch":
        made = kernel.batch_to_block(data, -626_843_481, b"\x06orders", 3, 0, 5, 50, 200, 100)
        if made is None:
            return [None]
        return [bytes(made[0]), made[1], kernel.properties_have_any(made[0], (b"DELAY", b"TRAN_MSG"))]
    if kind == "block":
        try:
            sealed = kernel.check_block(data, -626_843_481, b"\x06orders", 2, 4, 200, 100)
        except Exception as refused:
            return [None, *map(str, refused.args)]
        patched = bytearray(data)
        kernel.patch_block(patched, 0, len(patched), 7, 1, 4096, 1_700_000_000_000, bytes(range(16)), sealed > 0)
        return [sealed, bytes(patched), *_follow(kernel, patched, 0, 4096)]
    if kind == "fields":
        try:
            return [kernel.text_fields(bytes(data), 0, 4)]
        except ValueError as refused:
            return [None, str(refused)]
    if kind == "frames":
        frames, *end, fault = kernel.cut_frames(data, int(choice * 8) if choice < 0.2 else 0, 150, 60, tuple)
        return [None if fault else [(*head, bytes(body)) for *head, body in frames], *end, fault]
    if kind == "bodies":
        return _encode(kernel, data, choice)
    if kind == "columns":
        return _encode_columns(kernel, data, choice)
    if kind == "index":
        return _read_index(kernel, data, choice)
    if kind == "units":
        return _read_units(kernel, data, choice)
    if kind == "timers":
        return _read_timers(kernel, data, choice)
    start = int(choice * 8) if choice < 0.1 else 0
    found: list[Any] = [kernel.read_record(data, start, len(data), choice < 0.5, choice < 0.2)]
    queues = {(topic, queue_id): array("q") for topic in (b"orders", b"others") for queue_id in (0, 1)}
    stop, end = int(choice * 400), len(data) - int(choice * 40)
    found.append(kernel.follow_records(data, start, stop, end, 0, choice < 0.5, queues))
    return [*found, queues, *_follow(kernel, data, start, -1 if choice < 0.5 else 0)]


class _OfAnotherLength(bytes):
    def __len__(self) -> int:
        return self[0] if self[:1] else 3


def _encode(kernel: SimpleNamespace, data: bytearray, choice: float) -> list[Any]:
    """Make a block of the parts between zeros, which are bodies and texts; some bodies state a wrong length."""
    texts = bytes(data).split(b"\0")
    bodies: list[bytes] = texts[::-1]
    if choice < 0.2:
        place = int(choice * 5 * len(bodies))
        bodies[place] = _OfAnotherLength(bodies[place])
    prefix = b"7F00" * int(choice * 8)
    hosts = (bytes(20 if choice < 0.3 else 8), bytes(8))
    try:
        record = kernel.encode_record(
            bodies[0], texts[0], -626_843_481, b"\x06orders", 2, 4, 5, 6, 0x10 if choice < 0.4 else 0, 7,
            hosts[0], 8, hosts[1], 9, 10,
        )  # fmt: skip
        kernel.read_record(record, 0, len(record), True, False)
    except (ValueError, BufferError) as refused:
        return [None, str(refused)]
    try:
        block, starts = kernel.encode_block(
            bodies, texts, [*range(len(bodies))] if choice < 0.5 else [7],
            -626_843_481, b"\x06orders", 2, 4, prefix, int(choice * 70_000),
        )  # fmt: skip
    except BufferError as refused:
        return [None, str(refused)]
    try:
        return [bytes(block), starts, kernel.check_block(block, -626_843_481, b"\x06orders", 2, 4, 200, 100)]
    except kernel.Refusal as refused:
        return [bytes(block), starts, *map(str, refused.args)]


def _follow(kernel: SimpleNamespace, data: bytearray, start: int, base: int) -> list[Any]:
    table, *end = kernel.scan_records(data, start, len(data), base)
    keys = kernel.key_hashes(data, table, 0, len(table) // len(kernel.COLUMNS), 12_345)
    codes = kernel.tags_codes(data, table)
    runs = array("q", [row for run in kernel.runs(data, table) for row in run[2:4]])
    try:
        columns = kernel.columns_of_runs(table, codes, array("q", [*runs, *table[12:14]]))
    except ValueError as refused:
        columns = (str(refused), *kernel.columns_of_runs(table, codes, runs))
    units = kernel.queue_units(table[1::24], table[1::24], table[3::24], 5, -1 if base else 5, 300)
    return [
        table,
        end,
        codes,
        runs,
        columns,
        keys,
        units,
        kernel.record_starts(data, start, len(data)),
        *_read_columns(kernel, data, table, start),
    ]


def _read_columns(kernel: SimpleNamespace, data: bytearray, table: array[int], start: int) -> list[Any]:
    """Read the records as a client and Spark do."""
    rows = len(table) // len(kernel.COLUMNS)
    owners = [row & 1 for row in range(rows)]
    units = array("q")
    for row in range(rows):
        units.extend((table[24 * row + 4], table[24 * row + 1], table[24 * row + 3], owners[row]))
    units.extend(table[: 4 * (len(table) // 4)])  # numbers that are not units
    units = array("q", [number if at % 4 != 3 else number & 1 for at, number in enumerate(units)])
    places = kernel.property_places(data, table, b"KEYS")
    found: list[Any] = [*kernel.property_columns(data, table), places]
    for values in ((places, 0, 2), (table, 12, 24), (table, 18, 24), (table, 5, 24)):
        try:
            found.append(kernel.distinct(data, *values))
            found.append(kernel.gather(data, *values, True, {1: b"another value"}))
        except ValueError as refused:
            found.append(str(refused))
    return [
        *found,
        kernel.checksum_faults(data, table, start == 0),
        kernel.queue_records(data, start, len(data), b"orders", 0, 0, start == 0),
        kernel.unit_records(data, 0, units, [(b"orders", 0), (b"others", 1)]),
    ]


def _encode_columns(kernel: SimpleNamespace, data: bytearray, choice: float) -> list[Any]:
    """Encode three messages: 28 numbers say where their parts are in what follows them."""
    from reput_protocol.record.message_id import UniqueIdGenerator

    numbers = array("q", data[:224].ljust(224, b"\0"))
    numbers.byteswap()
    text = data[224:]
    four, six = (numbers[start : start + 4] for start in (0, 4, 8, 12)), (numbers[16:22], numbers[22:28])
    tags, keys, entries, bodies = four
    ids = UniqueIdGenerator(bytes(4), 5, 6, lambda: T0)
    found: list[Any] = []
    is_set = b"" if choice < 0.5 else b"\1\1\0\1\1"
    try:
        texts, edges = kernel.property_texts(3, text, tags, text, keys, text, six[0], text, six[1], is_set, entries)
        found += [bytes(texts[: edges[-1]]), edges]
        one, rest = array("q", [7]), (text, bodies, texts, edges)
        arguments = (one, one, int(choice * 4), 300, -626_843_481, b"\x06orders", 3, ids)
        block, stop = kernel.encode_rows(*rest, *arguments)
        kernel.check_block(block, -626_843_481, b"\x06orders", 3, stop - int(choice * 4), 1 << 20, 1 << 15)
        return [*found, bytes(block), stop]
    except Exception as refused:
        return [None, *found, *map(str, refused.args)]


def _read_index(kernel: SimpleNamespace, data: bytearray, choice: float) -> list[Any]:
    file = bytearray(data)
    keys = array("q", (7, 100, T0, 12, 200, T0 - 5000, (1 << 31) - 1, 300, T0 + (1 << 43), -3, 300, T0))
    stop = int(choice * 100) % 6
    try:
        found = [kernel.follow_chain(file, _SLOTS, _ENTRIES, number, 7, 1 + number % 3) for number in range(-1, 14)]
        slots = range(-1, 3), range(4, 7), range(10, 300)
        found += [kernel.fitting_slots(file, at[0], at[-1], 1 + at[0] % 2, 2, 100, 200) for at in slots]
        found.append(kernel.index_chains(file, _SLOTS, int(choice * 14), 3))
        entries, start = file[40 + 4 * _SLOTS + 20 :][: 20 * stop], int(choice * 10) % 3
        found.append(kernel.are_entries_of(entries, keys, start))
        found += [kernel.wrong_seconds(entries, keys, start, begin) for begin in (-(1 << 63), T0 - 9999, (1 << 63) - 1)]
        found.append(kernel.seconds_ascend(file, _SLOTS, _ENTRIES, 0, int(choice * 15)))
        inserted = kernel.insert_keys(file, _SLOTS, _ENTRIES, keys, 0, stop, int(choice * 14), T0 - 100, T0)
    except ValueError as refused:
        return [None, str(refused)]
    return [*found, inserted, bytes(file)]


def _read_units(kernel: SimpleNamespace, units: bytearray, choice: float) -> list[Any]:
    codes = None if choice < 0.3 else array("q", (-7, 0, 99))
    try:
        differing = kernel.differing_units(units, array("q", range(3 * int(choice * 8))), int(choice * 3))
    except ValueError as refused:
        differing = str(refused)
    return [
        kernel.select_units(units, 100, 5000, 2000, 900, 5, 800, 3, int(choice * 900), codes, None),
        kernel.select_units(units, 0, 1 << 62, 0, 900, 5, 800, 3, 700, codes, lambda place, _: place & 1),
        kernel.damaged_unit(units, 5000, 1024),
        kernel.files_of_units(units, 0, 1 << 62, 1024),
        kernel.valid_units(units, 3000),
        kernel.address_units(units, 0),
        kernel.stray_units(units, 150, -1 if choice < 0.3 else 2000, choice < 0.5, array("q", (900, 1100, 7))),
        differing,
    ]


def _read_timers(kernel: SimpleNamespace, units: bytearray, choice: float) -> list[Any]:
    wheel = bytearray(32 * 7)
    waiting: dict[int, int] = {}
    done = array("q", (100, 200))
    return [
        kernel.timer_units(units),
        kernel.timer_units_ahead(units, T0),
        kernel.chain_timer_units(wheel, units, 520, 0 if choice < 0.2 else T0, done, waiting),
        bytes(wheel),
        waiting,
        kernel.filled_slots(units, 5),
        kernel.filled_slots(wheel, T0 // 7000 * 7),
    ]


def _mutated(rng: random.Random, data: bytes) -> bytearray:
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changed))
        changed[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, changed[at] ^ 1 << rng.randrange(8)))
    if rng.random() < 0.2:
        del changed[rng.randrange(len(changed)) :]
    return changed or bytearray(b"\0")


def _samples() -> list[tuple[str, bytes]]:
    from reput_protocol.record.layout import encode_blank
    from reput_protocol.record.message_id import Host
    from reput_protocol.record.put_block import BatchItem, encode_batch
    from reput_protocol.record.record import Record, encode_record

    rng = random.Random(1)
    samples: list[tuple[str, bytes]] = []
    for _ in range(40):
        texts = [rng.choice(_TEXTS) for _ in range(4)]
        bodies = [rng.randbytes(rng.randrange(30)) for _ in range(4)]
        pairs = list(zip(bodies, texts, strict=True))
        puts = [encode_record(Record("orders", body, 2, properties=text)) for body, text in pairs]
        samples.append(("block", b"".join(puts)))
        samples.append(("batch", encode_batch([BatchItem(1, body, text) for body, text in pairs])))
        fields = [
            struct.pack(">h", len(one)) + one + struct.pack(">i", len(two)) + two
            for one, two in zip(texts, texts[::-1], strict=True)
        ]
        samples.append(("fields", b"".join(fields)))
        headers = [rng.randbytes(rng.randrange(30)) for _ in pairs]
        frames = [
            struct.pack(">II", 4 + len(header) + len(body), 0x4D << 24 | len(header)) + header + body
            for header, body in zip(headers, bodies, strict=True)
        ]
        samples.append(("frames", b"".join(frames)))
        samples.append(("bodies", b"\0".join([*bodies, *texts])))
        log = b""
        for number, (body, text) in enumerate(pairs):
            record = Record(
                rng.choice(["orders", "%RETRY%" + "g" * 140]),
                body,
                number % 2,
                queue_offset=number,
                physical_offset=len(log),
                sys_flag=rng.choice([0, 0, 4, 8, 12]),
                properties=text,
                born_host=Host(rng.choice(["::1", "10.0.0.1"]), 1),
                store_host=Host(rng.choice(["::1", "10.0.0.1"]), 1),
            )
            log += encode_record(record, with_crc=rng.random() < 0.3)
        samples.append(("log", log + rng.choice([b"", encode_blank(77)])))
        samples.append(("columns", _columns_sample(rng)))
        numbers = [rng.choice([0, -1, 1, 5, 7, 11, 300, 1 << 31]) for _ in range(120)]
        index = struct.pack(">qqqqii", T0, T0, 100, 200, 3, 7)
        index += b"".join(struct.pack(">I", number & 0xFFFF_FFFF) for number in numbers[: _SLOTS + 5 * _ENTRIES])
        samples.append(("index", index))
        places = [rng.choice([100, 200, 300, 1000, 2040, 4990, 1 << 62]) for _ in range(6)]
        codes = [rng.choice([-7, 0, 99, 5, -(1 << 63), -(1 << 31) - 1]) for _ in places]
        units = [
            struct.pack(">qiq", place, rng.choice([100, 300, 0x7FFF_FFFF]), code)
            for place, code in zip(places, codes, strict=True)
        ]
        samples.append(("units", b"".join(units)))
        timers = [
            struct.pack(">iqiqiqiiq", 52, -1, rng.randrange(8), T0, rng.randrange(-9, 9999), place, 100, code & 7, 0)
            for place, code in zip(places, codes, strict=True)
        ]
        samples.append(("timers", b"".join(timers)))
    return samples


def _columns_sample(rng: random.Random) -> bytes:
    """Return where tags, keys, properties and bodies of three messages are, and their text."""
    text = b"paid" + b"a b" * 3 + b"nUNIQ_KEYTAGS__CRC32#DELAY" + rng.randbytes(60)
    edges = [sorted(rng.randrange(12) for _ in range(4)) for _ in range(2)]
    edges += [sorted([0, rng.randrange(6), rng.randrange(6), 5]), sorted(rng.randrange(99) for _ in range(4))]
    edges += [[13, 14, 22, 26, 34, 38 + rng.randrange(2)], sorted(rng.sample(range(13), 6))]
    return b"".join(struct.pack(">q", edge) for some in edges for edge in some) + text


class _Form(MetaPathFinder):
    """Finds the modules of the kernel in one form."""

    def __init__(self, directory: Path, suffixes: list[str]) -> None:
        self._directory = directory
        self._suffixes = suffixes

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        files = (self._directory / f"{module}{suffix}" for suffix in self._suffixes)
        found = next((file for file in files if package == "reput_protocol.kernel" and file.exists()), None)
        return spec_from_file_location(name, found) if found is not None else None


def _load(directory: Path, suffixes: list[str]) -> SimpleNamespace:
    """Load the modules of the kernel in one form, without Cython's help; return all that they have."""
    from reput_protocol.kernel import MODULES

    names = [f"reput_protocol.kernel.{name}" for name in MODULES]
    for name in names:
        sys.modules.pop(name, None)
    cython, sys.modules["cython"] = sys.modules.get("cython"), None  # type: ignore[assignment]
    sys.meta_path.insert(0, form := _Form(directory, suffixes))
    found = SimpleNamespace()
    for name in names:
        vars(found).update(vars(import_module(name)))
    sys.meta_path.remove(form)
    del sys.modules["cython"]
    if cython is not None:
        sys.modules["cython"] = cython
    return found


if __name__ == "__main__":
    sys.exit(main())
