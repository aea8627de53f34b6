"""A script of one's own with argparse. Its only lines for autotune are the three that name it.

It runs by itself as before: `python train_reports.py --lr 0.05 --epochs 3`.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import autotune


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    train_x, val_x, train_y, val_y = x[:1200], x[1200:], y[:1200], y[1200:]
    model = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, 10))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, nesterov=args.nesterov
    )

    autotune.report(0, {})  # the set-up is over: what comes now is on the clock
    for epoch in range(1, args.epochs + 1):
        for batch in torch.randperm(len(train_x)).split(args.batch_size):
            loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with autotune.evaluating(), torch.no_grad():
            accuracy = (model(val_x).argmax(1) == val_y).float().mean().item()
        print(f"epoch {epoch}: {accuracy:.4f}")
        autotune.report(epoch * len(train_x), {"val_accuracy": accuracy})


if __name__ == "__main__":
    main()
