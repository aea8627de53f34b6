"""What the loop does for a trial, each part told on its own; `autotune.study.driver.loop` puts them in order."""
