"""Lists the headings of a Markdown text that comes by standard input as JSON."""
import json
import os
import sys

limit = int(os.environ.get("OUTLINE_DEPTH", "6"))
headings = []
for line in json.load(sys.stdin).splitlines():
    depth = len(line) - len(line.lstrip("#"))
    if 0 < depth <= limit and line[depth : depth + 1] == " ":
        headings.append({"depth": depth, "title": line[depth:].strip()})
print(json.dumps(headings))
