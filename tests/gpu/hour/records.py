"""The results of the steps: results.jsonl with a line for each finished step, and the report made from it."""
import json
import threading
import time

PARTS = ("probe", "starts", "parity", "sessions", "copies", "workloads", "memory", "sharing")
FINAL = ("ok", "failed", "skipped")  # steps with these states are not repeated; "not begun" is repeated


class Skip(Exception):
    """This machine or device cannot run a step; the message says why."""


class Failure(Exception):
    """A step failed; has the reason and the results until then."""

    def __init__(self, why, seen=None):
        super().__init__(why)
        self.seen = seen or {}


class OtherDevice(Exception):
    """The folder has results of another device."""


class Records:
    def __init__(self, folder, device, again=()):
        """`again`: parts whose earlier results are ignored."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.device = device
        self.steps = {}
        self.lock = threading.RLock()  # steps may run in several threads
        self.file = folder / "results.jsonl"
        text = self.file.read_text() if self.file.exists() else ""
        if text and not text.endswith("\n"):  # an earlier run was killed while it wrote
            self.file.write_text(text + "\n")
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["device"] != device:
                raise OtherDevice(f"{folder} has results of --device {record['device']}: name another folder")
            self.steps[record["part"], record["step"]] = record
        for key in [key for key in self.steps if key[0] in again]:
            del self.steps[key]

    def has(self, part, step):
        return self.steps.get((part, step), {}).get("status") in FINAL

    def add(self, part, step, status, seconds=0.0, seen=None, why=""):
        record = {"part": part, "step": step, "status": status, "seconds": round(seconds, 3), "device": self.device,
                  "at": time.strftime("%Y-%m-%dT%H:%M:%S"), "seen": seen or {}}
        if why:
            record["why"] = why
        with self.lock:
            self.steps[part, step] = record
            with self.file.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
        print(f"{part}/{step}: {status}" + (f": {why.splitlines()[0]}" if why else "") +
              (f" ({in_words(seen)})" if seen else ""), flush=True)

    def log(self, title, text):
        """Appends the output of a failed program (its last 20,000 characters) to log.txt."""
        with (self.folder / "log.txt").open("a") as log:
            log.write(f"=== {title}\n{text[-20000:]}\n")

    def of(self, part):
        return [record for record in self.steps.values() if record["part"] == part]

    def count(self, part, status):
        return sum(record["status"] == status for record in self.of(part))

    def write_report(self):
        with self.lock:
            (self.folder / "report.json").write_text(json.dumps({part: self.of(part) for part in PARTS}, indent=1))
            (self.folder / "report.md").write_text(report(self))


def in_words(value):
    """Formats a JSON value in one line, without quotes and outer braces."""
    if isinstance(value, dict):
        return ", ".join(f"{name} ({in_words(one)})" if isinstance(one, dict) else f"{name} {in_words(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(in_words(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def cell(text):
    return " ".join(text.split()).replace("|", "/")


def report(records):
    lines = [f"# First hour on a GPU machine: device {records.device}", "",
             "| part | ok | failed | skipped | not begun | seconds |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for part in PARTS:
        counts = " | ".join(str(records.count(part, status)) for status in (*FINAL, "not begun"))
        lines.append(f"| {part} | {counts} | {sum(record['seconds'] for record in records.of(part)):.0f} |")
    failed = [record for record in records.steps.values() if record["status"] == "failed"]
    lines += ["", "## Failed", ""] if failed else []
    lines += [f"- {record['part']}/{record['step']}: {cell(record['why'].splitlines()[0])}" for record in failed]
    for part in PARTS:
        if not records.of(part):
            continue
        lines += ["", f"## {part}", "", "| step | result | s | seen |", "| --- | --- | ---: | --- |"]
        for record in records.of(part):
            why = f": {record['why'].splitlines()[0]}" if record.get("why") else ""
            lines.append(f"| {record['step']} | {cell(record['status'] + why)} | {record['seconds']:.1f} | {cell(in_words(record['seen']))} |")
    return "\n".join(lines) + "\n"
