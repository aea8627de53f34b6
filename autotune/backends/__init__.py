"""Where trials run: the protocol, Ray worker groups, the inside of a worker, a simulator."""
