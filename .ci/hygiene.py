"""What no compiler looks at: text that belongs to one machine, and links that lead nowhere."""

import re
import subprocess
import sys
from pathlib import Path

# Directories of the machine something was built on, and hosts that packages come from.
MACHINE = re.compile(r"(?<![\w.])/(work|root|home)/|\b(crates\.io|pypi\.org|npmjs\.\w+|debian\.org)\b")
# Cargo writes where packages come from into its lock file.
EXEMPT = {"Cargo.lock"}
LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(#[^)\s]*)?\)")


def files():
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in names.splitlines() if Path(name).is_file()]


def faults(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if path.name not in EXEMPT and (match := MACHINE.search(line)):
            yield f"{path}:{number}: `{match[0]}` belongs to one machine"
        if path.suffix != ".md":
            continue
        for match in LINK.finditer(line):
            target = match["target"]
            if "://" not in target and not (path.parent / target).exists():
                yield f"{path}:{number}: `{target}` does not exist"


def main():
    checked, found = 0, []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        checked += 1
        found.extend(faults(path, text))
    if found or not checked:
        sys.exit("\n".join(found) or "no file was checked")
    print(f"hygiene: {checked} files")


main()
