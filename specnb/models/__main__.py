"""python -m specnb.models: fetch everything the notebooks need, and make the embedded model's fast copy."""

import argparse

parser = argparse.ArgumentParser(prog="python -m specnb.models", description=__doc__)
parser.parse_args()

from specnb.models import files, pairs  # noqa: E402 (now: torch and transformers take seconds)

try:
    for asset in files.ALL:
        print(f"{asset.filename}  {asset.size / 1e6:.1f} MB  {asset.licence}", flush=True)
        files.fetch(asset)
    print(f"model copy  {pairs.embedded_copy()}", flush=True)
except (ValueError, OSError) as error:
    parser.error(str(error))
