"""A plain scikit-learn function, tuned to its best accuracy: python examples/plain_function.py"""

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

import autotune as at


def train(config: dict) -> float:
    images, labels = load_digits(return_X_y=True)
    return cross_val_score(SVC(C=config["C"], gamma=config["gamma"]), images, labels, cv=3).mean()


if __name__ == "__main__":
    space = {"C": at.Float(0.1, 100, log=True), "gamma": at.Float(1e-5, 0.1, log=True)}
    result = at.tune(train, space, metric="accuracy", trials=30, name="digits-svc")
    print(result.best_value, result.best_config)
