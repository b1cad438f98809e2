"""python -m specnb.models: fetch everything the notebooks need, and make the embedded model's fast copy."""

from specnb.models import files, pairs

for asset in files.ALL:
    print(f"{asset.filename}  {asset.size / 1e6:.1f} MB  {asset.licence}", flush=True)
    files.fetch(asset)
print(f"model copy  {pairs.embedded_copy()}", flush=True)
