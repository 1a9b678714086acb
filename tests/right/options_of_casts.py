import torch


def scores(q, k, mask, options):
    with torch.autocast("cuda", **options):
        return (q @ k).masked_fill(mask, -1e9)


def cast_back(q, k, mask, options, *wanted):
    with torch.autocast("cuda"):
        seen = q @ k
        far = torch.full_like(seen, -1e9, **options)
        return seen.to(**options).masked_fill(mask, -1e9), seen.to(*wanted).masked_fill(mask, -1e9), far
