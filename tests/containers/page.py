"""The commands of a page: the code blocks below its headings."""
import re


def blocks(path):
    """Returns a dictionary from each heading to the commands below it, up to the next heading. Later blocks of a heading
    continue the first."""
    found, heading = {}, ""
    with open(path, encoding="utf-8") as page:
        for line in page:
            if title := re.match(r"#+ (.*)", line):
                heading = title[1].strip()
            elif line.startswith("    "):
                found[heading] = found.get(heading, "") + line[4:]
    return found
