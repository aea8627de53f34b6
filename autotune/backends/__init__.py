"""Where trials run: the protocol, Ray worker groups, what runs in a worker, a simulator."""
