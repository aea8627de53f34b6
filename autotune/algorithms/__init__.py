"""What decides, as functions of trials: samplers, pruners, controllers, ranking."""
