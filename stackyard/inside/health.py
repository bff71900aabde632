"""Read the health of a machine and of its NVIDIA GPUs, and print it as one line of JSON.

Owns the reading, and nothing of its meaning: `stackyard.gpu.health` judges. It runs on this machine
and, sent over ssh to `python3 -`, on hosts, so it needs Python 3.6 and its standard library. It
changes nothing. NVML is called by ctypes: its own binding is on no host. A value that cannot be
read is named with the reason, and is never a zero.

Over 300 lines: it is sent as standard input, so it is one file.

    health.py [ROOT]    ROOT: a folder that holds the dev of a made-up machine, for tests
    health.py --load    only what changes while the GPUs compute: utilization, power, memory
"""

import ctypes
import errno
import json
import os
import re
import subprocess
import sys
from typing import Any

VERSION = 1
LIBRARY = "libnvidia-ml.so.1"
DRIVER = "/proc/driver/nvidia/version"
# nvml.h: nvmlReturn_t. Numbers that it does not name here are shown as they are.
LOST = (15, 16)
INVALID_ARGUMENT, NOT_SUPPORTED, NO_DRIVER, NO_FUNCTION = 2, 3, 9, 13
ERRORS = {
    1: "NVML is not initialized", 2: "invalid argument", 3: "not supported by this GPU or driver",
    4: "no permission", 6: "not found", 8: "the GPU's external power is not attached",
    9: "no driver is loaded", 10: "the driver does not answer in time", 12: "no library",
    13: "this driver has no such function", 14: "the GPU's infoROM is corrupt",
    15: "the GPU has fallen off the bus", 16: "the GPU must be reset first",
    17: "the operating system blocks it (a control group?)",
    18: "the driver's library and its kernel module differ in version",
    21: "no data", 999: "unknown error",
}  # fmt: skip
# nvml.h: nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlNvLinkErrorCounter_t, and array sizes.
UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1
LINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
MAX_LINKS = 36
TEXT_BYTES = 96
UINT, ULONGLONG = ctypes.c_uint, ctypes.c_ulonglong
# Values that one call returns: their names, the function, arguments before them, their C type.
# Where several functions are named, the first that the library has is called.
CALLS = (
    (("ecc_mode", "ecc_mode_pending"), ("nvmlDeviceGetEccMode",), (), UINT),
    (("ecc_volatile",), ("nvmlDeviceGetTotalEccErrors",), (UNCORRECTED, VOLATILE), ULONGLONG),
    (("ecc_aggregate",), ("nvmlDeviceGetTotalEccErrors",), (UNCORRECTED, AGGREGATE), ULONGLONG),
    (("rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed"),
     ("nvmlDeviceGetRemappedRows",), (), UINT),
    (("pages_pending",), ("nvmlDeviceGetRetiredPagesPendingStatus",), (), UINT),
    (("pcie_generation",), ("nvmlDeviceGetCurrPcieLinkGeneration",), (), UINT),
    (("pcie_generation_max",), ("nvmlDeviceGetMaxPcieLinkGeneration",), (), UINT),
    (("pcie_width",), ("nvmlDeviceGetCurrPcieLinkWidth",), (), UINT),
    (("pcie_width_max",), ("nvmlDeviceGetMaxPcieLinkWidth",), (), UINT),
    (("clocks_event",),
     ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
     (), ULONGLONG),
    (("power_limit_mw",), ("nvmlDeviceGetEnforcedPowerLimit",), (), UINT),
    (("power_default_mw",), ("nvmlDeviceGetPowerManagementDefaultLimit",), (), UINT),
)  # fmt: skip
# Values that one call writes into a structure of equal numbers: nvmlUtilization_t, nvmlMemory_t.
LOAD = (
    (("busy_percent", "memory_busy_percent"), ("nvmlDeviceGetUtilizationRates",), (), UINT * 2),
    (("memory_bytes", "memory_free_bytes", "memory_used_bytes"), ("nvmlDeviceGetMemoryInfo",), (),
     ULONGLONG * 3),
    (("power_mw",), ("nvmlDeviceGetPowerUsage",), (), UINT),
    (("power_limit_mw",), ("nvmlDeviceGetEnforcedPowerLimit",), (), UINT),
)  # fmt: skip
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+),? ?(.*)")
_LINES = 200


class PciInfo(ctypes.Structure):
    """Hold nvmlPciInfo_t of nvml.h."""

    _fields_ = [
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", UINT),
        ("bus", UINT),
        ("device", UINT),
        ("pciDeviceId", UINT),
        ("pciSubSystemId", UINT),
        ("busId", ctypes.c_char * 32),
    ]


class Unread(Exception):
    """Report that NVML has no value, by its code."""

    def __init__(self, code: int) -> None:
        super().__init__(ERRORS.get(code, f"NVML's error {code}"))
        self.code = code


class Library:
    """Call NVML's functions.

    Raises:
        OSError: the library cannot be loaded.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)

    def call(self, names: Any, *arguments: Any) -> None:
        """Call the first of these functions that the library has.

        Raises:
            Unread: it has none, or the call fails.
        """
        for name in (names,) if isinstance(names, str) else names:
            function = getattr(self._library, name, None)
            if function is not None:
                function.restype = ctypes.c_int
                code = function(*arguments)
                if not code:
                    return
                if code != NO_FUNCTION:
                    raise Unread(code)
        raise Unread(NO_FUNCTION)

    def text(self, name: str, handle: Any) -> str:
        """Return a text of a device; empty where it has none."""
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        try:
            self.call(name, handle, buffer, UINT(TEXT_BYTES))
        except Unread:
            return ""
        return buffer.value.decode("ascii", "replace")


def values_of(library: Library, handle: Any, call: Any) -> Any:
    """Return the values of one call, by name.

    Raises:
        Unread: the call fails.
    """
    names, functions, arguments, kind = call
    whole = issubclass(kind, ctypes.Array)
    made = [kind()] if whole else [kind() for _ in names]
    words = [UINT(argument) for argument in arguments]
    library.call(functions, handle, *words, *(ctypes.byref(value) for value in made))
    # Python 3.6 knows no `strict`.
    return dict(zip(names, made[0] if whole else (one.value for one in made)))  # noqa: B905


def read_gpu(library: Library, index: int, calls: Any = CALLS) -> Any:
    """Read one GPU."""
    found: Any = {"index": index, "uuid": "", "name": "", "bus": "", "values": {}, "unread": {},
                  "links": [], "lost": ""}  # fmt: skip
    handle = ctypes.c_void_p()
    try:
        library.call("nvmlDeviceGetHandleByIndex_v2", UINT(index), ctypes.byref(handle))
    except Unread as error:
        found["unread"]["gpu"] = str(error)
        found["lost"] = str(error) if error.code in LOST else ""
        return found
    found["uuid"] = library.text("nvmlDeviceGetUUID", handle)
    found["name"] = library.text("nvmlDeviceGetName", handle)
    place = PciInfo()
    try:
        library.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(place))
        found["bus"] = place.busId.decode("ascii", "replace").lower()
    except Unread as error:
        found["unread"]["bus"] = str(error)
    for call in calls:
        try:
            found["values"].update(values_of(library, handle, call))
        except Unread as error:
            found["unread"].update(dict.fromkeys(call[0], str(error)))
            found["lost"] = str(error) if error.code in LOST else found["lost"]
    if calls is CALLS:
        found["links"] = list(read_links(library, handle, found["unread"]))
    return found


def read_links(library: Library, handle: Any, unread: Any) -> Any:
    """Yield the NVLinks of a GPU; a link that the GPU does not have is left out."""
    state, count = UINT(), ULONGLONG()
    why, found = "", 0
    for number in range(MAX_LINKS):
        link: Any = {"link": number, "active": None, "errors": {}, "unread": {}}
        try:
            library.call("nvmlDeviceGetNvLinkState", handle, UINT(number), ctypes.byref(state))
            link["active"] = bool(state.value)
        except Unread as error:
            if error.code in (NOT_SUPPORTED, INVALID_ARGUMENT):
                why = why or str(error)
                continue
            link["unread"]["state"] = str(error)
        for name, kind in LINK_ERRORS.items() if link["active"] else ():
            try:
                library.call("nvmlDeviceGetNvLinkErrorCounter", handle, UINT(number), UINT(kind),
                             ctypes.byref(count))  # fmt: skip
                link["errors"][name] = count.value
            except Unread as error:
                link["unread"][name] = str(error)
        found += 1
        yield link
    if not found:
        unread["nvlink"] = why


def read_gpus(found: Any, calls: Any = CALLS) -> None:
    """Read the driver's version and all GPUs, or the reason why there is none."""
    try:
        library = Library()
        library.call("nvmlInit_v2")
    except (OSError, Unread) as error:
        if os.path.exists(DRIVER) or (isinstance(error, Unread) and error.code != NO_DRIVER):
            found["nvml"] = str(error)
        else:
            found["no_gpus"] = "no NVIDIA driver is loaded"
        return
    try:
        version = ctypes.create_string_buffer(TEXT_BYTES)
        library.call("nvmlSystemGetDriverVersion", version, UINT(TEXT_BYTES))
        found["driver"] = version.value.decode("ascii", "replace")
        count = UINT()
        library.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found["gpus"] = [read_gpu(library, index, calls) for index in range(count.value)]
    except Unread as error:
        found["nvml"] = str(error)
    library.call("nvmlShutdown")


def kernel_lines(path: str) -> Any:
    """Return the kernel's messages, and whether they begin at its start.

    Raises:
        OSError: they cannot be read.
    """
    lines, first = [], -1
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(log, 8192)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    break
                if error.errno != errno.EPIPE:  # EPIPE: records were overwritten meanwhile
                    raise
                continue
            if not record:
                break
            for line in record.decode("utf-8", "replace").splitlines():
                # PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;MESSAGE, then lines that begin with a blank.
                head, _, message = line.partition(";")
                words = head.split(",")
                if len(words) > 2 and words[1].isdigit():
                    first = int(words[1]) if first < 0 else first
                    lines.append(message)
    finally:
        os.close(log)
    return lines, first == 0


def journal_lines() -> Any:
    """Return this boot's kernel messages from the journal; none where it may not be read."""
    words = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=cat"]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, timeout=15)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.decode("utf-8", "replace").splitlines() if not done.returncode else []


def read_kernel(root: str) -> Any:
    """Read the Xid errors of the kernel log, counted by GPU and number."""
    why, lines, whole = "", [], False
    try:
        lines, whole = kernel_lines(root + "/dev/kmsg")
    except OSError as error:
        why = f"/dev/kmsg: {error.strerror}"
    if not lines:
        lines = journal_lines() if not root else []
        whole = bool(lines)
    if not lines:
        # A kernel writes hundreds of lines when it starts: an empty log is one that is not shown.
        return {"unread": why or "the kernel log is empty here", "whole": False, "xids": []}
    found: Any = {}
    for line in lines:
        match = _XID.search(line)
        if match:
            place, number, text = match.groups()
            xid = found.setdefault((place.lower(), int(number)), {
                "bus": place.lower(), "xid": int(number), "count": 0, "text": ""})  # fmt: skip
            xid["count"] += 1
            xid["text"] = text[:_LINES]
    return {"unread": "", "whole": whole, "xids": list(found.values())}


def shared_memory(root: str) -> Any:
    """Return the size of /dev/shm in bytes; None where it cannot be read."""
    try:
        sizes = os.statvfs(root + "/dev/shm")
    except OSError:
        return None
    return sizes.f_blocks * sizes.f_frsize


def read_load() -> Any:
    """Read the load of all GPUs, in the form of `read`."""
    found: Any = {"version": VERSION, "driver": "", "no_gpus": "", "nvml": "", "gpus": [],
                  "kernel": {"unread": "it was not asked", "whole": False, "xids": []},
                  "shm_bytes": None}  # fmt: skip
    read_gpus(found, LOAD)
    return found


def read(root: str = "") -> Any:
    """Read the machine and all of its GPUs."""
    found: Any = {"version": VERSION, "driver": "", "no_gpus": "", "nvml": "", "gpus": [],
                  "kernel": {}, "shm_bytes": shared_memory(root)}  # fmt: skip
    read_gpus(found)
    found["kernel"] = read_kernel(root)
    return found


if __name__ == "__main__":
    print(json.dumps(read_load() if sys.argv[1:] == ["--load"] else read(*sys.argv[1:2])))
