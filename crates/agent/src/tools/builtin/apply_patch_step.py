import json
from pathlib import Path

SAME = [lambda a, b: a == b, lambda a, b: a.rstrip() == b.rstrip(), lambda a, b: a.strip() == b.strip()]


def place(hunk, lines, start):
    old, at = hunk["old"], hunk["at"]
    if not old:
        return len(lines) if at is None else min(max(at, start), len(lines))
    wanted = start if at is None else at
    for same in SAME:
        places = range(start, len(lines) - len(old) + 1)
        fitting = [n for n in places if all(same(a, b) for a, b in zip(old, lines[n:]))]
        if fitting:
            return min(fitting, key=lambda n: abs(n - wanted))
    raise SystemExit("a hunk does not fit: " + "\n".join(old))


def change(path, text, hunks):
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()
    start = 0
    for hunk in hunks:
        at = place(hunk, lines, start)
        lines[at : at + len(hunk["old"])] = hunk["new"]
        start = at + len(hunk["new"])
    end = "\n" if lines and (text == "" or text.endswith("\n")) else ""
    return "\n".join(lines) + end


for file in json.loads(CHANGES):
    path = Path(file["path"])
    if file["removed"]:
        path.unlink()
        continue
    text = "" if file["made"] else path.read_bytes().decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(change(path, text, file["hunks"]).encode())
