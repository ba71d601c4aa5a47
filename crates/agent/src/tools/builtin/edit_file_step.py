import re
from pathlib import Path
path, old, new = Path(PATH), OLD, NEW
text = path.read_bytes().decode()
pattern = r"[ \t\r]*\n".join(re.escape(line.rstrip()) for line in old.split("\n"))
place = re.search(pattern if old.endswith("\n") else pattern + r"[ \t]*", text)
if "\r\n" in text:
    new = new.replace("\r\n", "\n").replace("\n", "\r\n")
path.write_bytes((text[: place.start()] + new + text[place.end() :]).encode())
