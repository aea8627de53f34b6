"""A script that knows nothing of autotune, and prints lines of JSON: any language would do.

`python train_prints.py --lr 0.5 --epochs 3`
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--decay", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    random = np.random.default_rng(args.seed)
    x, y = load_digits(return_X_y=True)
    x, right = x / 16, np.eye(10)[y]
    weights = np.zeros((64, 10))
    print(json.dumps({"step": 0}), flush=True)  # the set-up is over
    for epoch in range(1, args.epochs + 1):
        for batch in np.array_split(random.permutation(1200), 1200 // args.batch_size):
            scores = np.exp(x[batch] @ weights)
            error = scores / scores.sum(1, keepdims=True) - right[batch]
            weights -= args.lr * (x[batch].T @ error / len(batch) + args.decay * weights)
        accuracy = float(((x[1200:] @ weights).argmax(1) == y[1200:]).mean())
        print(json.dumps({"step": epoch * 1200, "val_accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    main()
