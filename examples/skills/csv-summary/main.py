"""Sums the numeric columns of a CSV file of the workspace, named by the first argument."""
import csv
import json
import sys


def main(path):
    with open(path, newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    sums = {}
    for row in rows:
        for name, value in row.items():
            try:
                sums[name] = sums.get(name, 0) + float(value)
            except ValueError:
                pass
    print(json.dumps({"rows": len(rows), "sums": sums}))


main(sys.argv[1])
